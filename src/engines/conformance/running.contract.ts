import { expect } from "vitest";
import type { Engine } from "../../protocol/engine.ts";
import type { Finish, GenerateRequest, SamplingParams, StopConditions, TokenLogprob } from "../../protocol/generate.ts";

/** Requests in short form, and whole answers, for the parts of the engine contract. */
export interface RequestChange {
  readonly sampling?: Partial<SamplingParams>;
  readonly stop?: Partial<StopConditions>;
  readonly grammar?: GenerateRequest["grammar"];
  readonly topLogprobs?: number;
  readonly generated?: Uint32Array;
}

export interface Outcome {
  readonly tokens: number[];
  readonly logprobs: TokenLogprob[];
  readonly finishes: Finish[];
  readonly error: unknown;
}

/** "Every few seconds": an engine that is silent for longer looks as if it hung. */
const MAX_SILENCE_MS = 10_000;

const greedy: SamplingParams = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  repetitionPenalty: 1,
};

let requests = 0;

export function requestFor(tokens: Uint32Array, change: RequestChange = {}): GenerateRequest {
  return {
    requestId: `conformance-${++requests}`,
    model: "under-test",
    tokens,
    sampling: { ...greedy, ...change.sampling },
    stop: { maxTokens: 16, minTokens: 0, stopTokenIds: [], ignoreEos: true, ...change.stop },
    ...(change.grammar === undefined ? {} : { grammar: change.grammar }),
    ...(change.topLogprobs === undefined ? {} : { topLogprobs: change.topLogprobs }),
    ...(change.generated === undefined ? {} : { generated: change.generated }),
    timeoutMs: 60_000,
  };
}

export async function run(
  engine: Engine,
  request: GenerateRequest,
  signal = AbortSignal.timeout(60_000),
): Promise<Outcome> {
  const outcome = {
    tokens: [] as number[],
    logprobs: [] as TokenLogprob[],
    finishes: [] as Finish[],
    error: undefined as unknown,
  };
  let lastSignMs = performance.now();
  try {
    for await (const delta of engine.generate(request, signal)) {
      const silenceMs = performance.now() - lastSignMs;
      if (silenceMs > MAX_SILENCE_MS) throw new Error(`the engine gave no sign of life for ${silenceMs} ms`);
      lastSignMs += silenceMs;
      if (outcome.finishes.length > 0) throw new Error("a delta came after the finish");
      outcome.tokens.push(...delta.tokens);
      if (delta.logprobs) {
        expect(delta.logprobs.length).toBe(delta.tokens.length);
        outcome.logprobs.push(...delta.logprobs);
      } else if (request.topLogprobs !== undefined) expect(delta.tokens.length).toBe(0);
      if (delta.finish) outcome.finishes.push(delta.finish);
    }
  } catch (thrown) {
    outcome.error = thrown;
  }
  return outcome;
}

/** The request must end properly. */
export async function finished(engine: Engine, request: GenerateRequest): Promise<Outcome & { finish: Finish }> {
  const outcome = await run(engine, request);
  if (outcome.error !== undefined) throw outcome.error;
  expect(outcome.finishes.length).toBe(1);
  const finish = outcome.finishes[0]!;
  expect(finish.usage.promptTokens).toBe(request.tokens.length);
  expect(finish.usage.completionTokens).toBe((request.generated?.length ?? 0) + outcome.tokens.length);
  expect(finish.usage.cachedTokens).toBeGreaterThanOrEqual(0);
  expect(finish.usage.cachedTokens).toBeLessThan(request.tokens.length);
  return { ...outcome, finish };
}

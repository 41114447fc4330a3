import { fileURLToPath } from "node:url";
import type {
  Engine,
  Finish,
  GenerateRequest,
  SamplingParams,
  StopConditions,
  TokenLogprob,
} from "../../protocol/index.ts";

/** What the tests of this folder share: requests in short form, and whole answers. */
export const builtinModel = fileURLToPath(new URL("../../../models/builtin.gguf", import.meta.url));

export const greedy: SamplingParams = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  repetitionPenalty: 1,
};

export interface ShortRequest extends Omit<Partial<GenerateRequest>, "tokens" | "sampling" | "stop"> {
  readonly sampling?: Partial<SamplingParams>;
  readonly stop?: Partial<StopConditions>;
}

let requestCount = 0;

export function request(tokens: Iterable<number>, short: ShortRequest = {}): GenerateRequest {
  return {
    requestId: `request-${++requestCount}`,
    model: "stator-builtin",
    timeoutMs: 60_000,
    ...short,
    tokens: Uint32Array.from(tokens),
    sampling: { ...greedy, ...short.sampling },
    stop: { maxTokens: 64, minTokens: 0, stopTokenIds: [], ignoreEos: false, ...short.stop },
  };
}

export interface Answer {
  readonly tokens: number[];
  readonly logprobs: TokenLogprob[];
  readonly finish: Finish;
}

/** Runs a request to its end. */
export async function answer(engine: Engine, wanted: GenerateRequest, signal?: AbortSignal): Promise<Answer> {
  const tokens: number[] = [];
  const logprobs: TokenLogprob[] = [];
  let finish: Finish | undefined;
  for await (const delta of engine.generate(wanted, signal ?? AbortSignal.timeout(60_000))) {
    if (finish !== undefined) throw new Error("A delta came after the finish.");
    tokens.push(...delta.tokens);
    logprobs.push(...(delta.logprobs ?? []));
    finish = delta.finish;
  }
  if (finish === undefined) throw new Error("The stream had no finish.");
  return { tokens, logprobs, finish };
}

/** Different prompts of different lengths that begin alike in groups, as conversations do. */
export function variedPrompts(count: number, seed = 1): Uint32Array[] {
  let state = seed;
  const below = (bound: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * bound);
  };
  const groups = Array.from({ length: 4 }, () => Array.from({ length: 20 + below(150) }, () => 263 + below(249)));
  return Array.from({ length: count }, (_, index) =>
    Uint32Array.from([
      1,
      4,
      ...groups[index % 4]!,
      ...Array.from({ length: 1 + below(60) }, () => 263 + below(249)),
      6,
      5,
    ]),
  );
}

/** Runs `work` on every item, at most `limit` at a time; results in the order of the items. */
export async function concurrently<T, R>(
  items: readonly T[],
  limit: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  let next = 0;
  await Promise.all(
    Array.from({ length: limit }, async () => {
      while (next < items.length) {
        const index = next++;
        results[index] = await work(items[index]!);
      }
    }),
  );
  return results;
}

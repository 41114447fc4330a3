import { expect, test } from "vitest";
import type { GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { engineContract } from "../conformance/engine.contract.ts";
import { echoContract, echoPrompt } from "./echo.contract.ts";
import { EchoEngine } from "./echo-engine.ts";

engineContract("echo", async () => new EchoEngine({ contextLength: 4096, maxRunning: 8 }), {
  ...echoContract,
  makeSlowEngine: async () => new EchoEngine({ contextLength: 4096, tokenRate: 500 }),
});

function requestFor(
  text: string,
  change: Partial<GenerateRequest["stop"]> = {},
  topLogprobs?: number,
): GenerateRequest {
  return {
    requestId: "r",
    model: "echo",
    tokens: Uint32Array.from(Buffer.from(text)),
    sampling: {
      temperature: 1,
      topP: 1,
      topK: 0,
      minP: 0,
      presencePenalty: 0,
      frequencyPenalty: 0,
      repetitionPenalty: 1,
    },
    stop: { maxTokens: 10, minTokens: 0, stopTokenIds: [], ignoreEos: false, ...change },
    ...(topLogprobs === undefined ? {} : { topLogprobs }),
    timeoutMs: 10_000,
  };
}

async function deltasOf(engine: EchoEngine, request: GenerateRequest): Promise<TokenDelta[]> {
  const deltas: TokenDelta[] = [];
  for await (const delta of engine.generate(request, AbortSignal.timeout(10_000))) deltas.push(delta);
  return deltas;
}

const textOf = (deltas: TokenDelta[]): string => Buffer.from(deltas.flatMap((it) => [...it.tokens])).toString();

test("the prompt comes back, cyclically, one token per delta", async () => {
  const deltas = await deltasOf(new EchoEngine(), requestFor("abc"));
  expect(textOf(deltas)).toBe("abcabcabca");
  expect(deltas.length).toBe(10);
  expect(deltas[0]!.logprobs).toBeUndefined();
});

test("stop tokens and minTokens", async () => {
  const engine = new EchoEngine();
  const x = "x".charCodeAt(0);
  expect(textOf(await deltasOf(engine, requestFor("abxc", { stopTokenIds: [x] })))).toBe("ab");
  expect(textOf(await deltasOf(engine, requestFor("abxc", { stopTokenIds: [x], minTokens: 4 })))).toBe("abcab");
  expect(textOf(await deltasOf(engine, requestFor("xx", { stopTokenIds: [x], minTokens: 2 })))).toBe("\0\0");
});

test("logprobs name the byte first", async () => {
  const [delta] = await deltasOf(new EchoEngine(), requestFor("\0", { maxTokens: 1 }, 3));
  expect(delta!.logprobs).toEqual([
    {
      logprob: 0,
      top: [
        { token: 0, logprob: 0 },
        { token: 1, logprob: -100 },
        { token: 2, logprob: -100 },
      ],
    },
  ]);
});

test("the pace is kept: neither early nor far behind, for many streams on one timer", async () => {
  const engine = new EchoEngine({ tokenRate: 200 });
  const timers = (): number => process.getActiveResourcesInfo().filter((it) => it === "Timeout").length;
  const before = timers();
  const began = performance.now();
  let checked = false;
  await Promise.all(
    Array.from({ length: 50 }, async () => {
      const deltas: TokenDelta[] = [];
      for await (const delta of engine.generate(requestFor("abc", { maxTokens: 60 }), new AbortController().signal)) {
        deltas.push(delta);
        const seen = deltas.reduce((sum, it) => sum + it.tokens.length, 0);
        expect(seen).toBeLessThanOrEqual(Math.floor(((performance.now() - began) * 200) / 1000) + 1);
        if (seen > 5 && !checked) {
          checked = true;
          expect(timers() - before).toBeLessThanOrEqual(1);
        }
      }
      expect(textOf(deltas)).toBe("abc".repeat(20));
    }),
  );
  const elapsed = performance.now() - began;
  expect(elapsed).toBeGreaterThanOrEqual(294);
  expect(elapsed).toBeLessThan(2000);
  await engine.close();
});

test("a reader that comes back late gets no flood", async () => {
  const engine = new EchoEngine({ tokenRate: 10_000 });
  const stream = engine.generate(requestFor("abc", { maxTokens: 100_000 }), new AbortController().signal);
  const iterator = stream[Symbol.asyncIterator]();
  await iterator.next();
  await new Promise((resolve) => setTimeout(resolve, 60));
  const late = (await iterator.next()).value as TokenDelta;
  expect(late.tokens.length).toBeLessThanOrEqual(64);
  await engine.close();
});

test("one stream as fast as possible lets the event loop turn", async () => {
  const engine = new EchoEngine();
  let turns = 0;
  const count = (): void => {
    turns++;
    immediate = setImmediate(count);
  };
  let immediate = setImmediate(count);
  await deltasOf(engine, requestFor("abc", { maxTokens: 6400 }));
  clearImmediate(immediate);
  expect(turns).toBeGreaterThanOrEqual(50);
});

test("embeddings depend on the bytes and their order", async () => {
  const { embedding } = new EchoEngine();
  const embed = (text: string): Promise<Float32Array> =>
    embedding.embed(Uint32Array.from(Buffer.from(text)), new AbortController().signal);
  expect(await embed("ab")).toEqual(await embed("ab"));
  expect(await embed("ab")).not.toEqual(await embed("ba"));
  expect(Math.hypot(...(await embed("hello")))).toBeCloseTo(1, 5);
  expect(echoPrompt(3).length).toBe(3);
});

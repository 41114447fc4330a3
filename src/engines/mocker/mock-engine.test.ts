import { expect, test, vi } from "vitest";
import { fixedTiming } from "../../mocker/timing/fixed.ts";
import { engineContract } from "../conformance/engine.contract.ts";
import { requestFor, run } from "../conformance/running.contract.ts";
import { echoPrompt } from "../echo/echo.contract.ts";
import { MockEngine } from "./mock-engine.ts";

const settings = { timing: fixedTiming(2, 1), blockTokens: 16, blocks: 2048 };

engineContract("mocker", async () => new MockEngine({ settings, speedup: 20, contextLength: 4096 }), {
  prompt: echoPrompt,
  refused: [
    { what: "JSON mode", change: { grammar: { kind: "json_object" } }, param: "response_format" },
    { what: "logit bias", change: { sampling: { logitBias: [[1, 5]] } }, param: "logit_bias" },
    { what: "logprobs", change: { topLogprobs: 0 }, param: "logprobs" },
  ],
  makeSlowEngine: async () => new MockEngine({ settings, speedup: 1, contextLength: 4096 }),
});

test("the second request with the same prompt finds it in the cache, and a prompt that goes on the answer, too", async () => {
  const engine = new MockEngine({ settings, speedup: 20 });
  const prompt = echoPrompt(200);
  const first = await run(engine, requestFor(prompt, { stop: { maxTokens: 40 } }));
  expect(first.finishes[0]!.usage.cachedTokens).toBe(0);
  const again = await run(engine, requestFor(prompt, { stop: { maxTokens: 40 } }));
  expect(again.finishes[0]!.usage.cachedTokens).toBe(192);
  expect(again.tokens).toEqual(first.tokens);
  const longer = Uint32Array.from([...prompt, ...first.tokens, ...echoPrompt(30)]);
  const next = await run(engine, requestFor(longer, { stop: { maxTokens: 4 } }));
  expect(next.finishes[0]!.usage.cachedTokens).toBeGreaterThanOrEqual(224);
  await engine.close();
});

test("time is the simulation's, divided by the speed-up", async () => {
  const slow = { timing: fixedTiming(100, 50), blockTokens: 16, blocks: 64 };
  for (const speedup of [1, 10]) {
    const engine = new MockEngine({ settings: slow, speedup });
    const began = performance.now();
    await run(engine, requestFor(echoPrompt(20), { stop: { maxTokens: 5 } })); // 150 + 4 x 50 = 350 ms
    expect((performance.now() - began) * speedup).toBeGreaterThan(340);
    await engine.close();
  }
});

test("freeze and slow-down by the engine's pages", async () => {
  const engine = new MockEngine({ settings, speedup: 1 });
  const act = (name: string, argument: unknown) => engine.admin.get(name)!(argument, AbortSignal.timeout(1_000));
  expect(() => act("freeze", {})).toThrow("ms must be a number");
  await act("freeze", { ms: 120 });
  const began = performance.now();
  await run(engine, requestFor(echoPrompt(20), { stop: { maxTokens: 2 } }));
  expect(performance.now() - began).toBeGreaterThan(100);
  expect(await act("slow-down", { factor: 2 })).toEqual({ factor: 2 });
  await engine.close();
});

test("frozen by a fault nothing comes, no sign of life either; thawed, all goes on", async () => {
  vi.useFakeTimers();
  try {
    const engine = new MockEngine({ settings: { ...settings, timing: fixedTiming(100, 50) } });
    const stream = engine.generate(
      requestFor(echoPrompt(20), { stop: { maxTokens: 2 } }),
      new AbortController().signal,
    );
    let told = 0;
    const done = (async () => {
      for await (const _ of stream) told++;
    })();
    await vi.advanceTimersByTimeAsync(60);
    engine.faults.freeze(true);
    engine.faults.freeze(true); // a second fault of the kind
    await vi.advanceTimersByTimeAsync(3_600_000);
    expect(told).toBe(0);
    engine.faults.freeze(false);
    await vi.advanceTimersByTimeAsync(30); // what was left of the pass: 90 ms
    expect(told).toBe(0);
    engine.faults.slowDown(10);
    await vi.advanceTimersByTimeAsync(100);
    expect(told).toBe(1);
    await vi.advanceTimersByTimeAsync(300); // a pass of 500 ms
    expect(told).toBe(1);
    await vi.advanceTimersByTimeAsync(300);
    await done;
    expect(told).toBe(2);
    await engine.close();
  } finally {
    vi.useRealTimers();
  }
});

test("a request that can never run is refused, and others go on", async () => {
  const engine = new MockEngine({ settings: { ...settings, blocks: 8 }, speedup: 20 });
  expect(engine.describe().card.contextLength).toBe(128);
  const [big, small] = await Promise.all([
    run(engine, requestFor(echoPrompt(127), { stop: { maxTokens: 100 } })),
    run(engine, requestFor(echoPrompt(20), { stop: { maxTokens: 4 } })),
  ]);
  expect(big.finishes.length + (big.error === undefined ? 0 : 1)).toBe(1);
  expect(small.tokens.length).toBe(4);
  await engine.close();
});

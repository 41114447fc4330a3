import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Arrival, drive } from "./drive.contract.ts";
import type { EngineSettings } from "./engine-config.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

const settings: fc.Arbitrary<EngineSettings> = fc.record({
  flavour: fc.constantFrom("vllm" as const, "sglang" as const),
  blockTokens: fc.constantFrom(1, 4, 16),
  blocks: fc.oneof(fc.integer({ min: 1, max: 60 }), fc.constant(Number.POSITIVE_INFINITY)),
  maxSequences: fc.integer({ min: 1, max: 8 }),
  maxBatchedTokens: fc.integer({ min: 1, max: 64 }),
  prefixCaching: fc.boolean(),
  chunkedPrefill: fc.boolean(),
  preemption: fc.constantFrom("lifo" as const, "fifo" as const),
  acceptRates: fc.constantFrom([], [0.5], [0.9, 0.5]),
  kvEvents: fc.constant(true),
  kvBytesPerToken: fc.constant(100),
  tiers: fc.constantFrom(
    [],
    [{ blocks: 10, bytesPerSecond: 100_000 }],
    [
      { blocks: 2, bytesPerSecond: 50_000 },
      { blocks: 20, bytesPerSecond: 20_000 },
    ],
  ),
  timing: fc.constant(fixedTiming(10, 1)),
  sglang: fc.record({
    policy: fc.constantFrom("fifo" as const, "longest-prefix" as const),
    chunkedPrefillTokens: fc.constantFrom(16, 32),
    clipMaxNewTokens: fc.constantFrom(1, 4096),
    conservativeness: fc.constantFrom(0.01, 1),
  }),
});

const arrivals: fc.Arbitrary<Arrival[]> = fc
  .array(
    fc.record({
      atMs: fc.integer({ min: 0, max: 100 }),
      inputTokens: fc.integer({ min: 1, max: 80 }),
      outputTokens: fc.integer({ min: 1, max: 30 }),
      priority: fc.integer({ min: 0, max: 1 }),
      group: fc.integer({ min: 0, max: 2 }),
    }),
    { minLength: 1, maxLength: 12 },
  )
  .map((list) =>
    list.map(({ group, ...request }, id) => ({ ...request, id, blockKeys: chainOf(group, request.inputTokens) })),
  );

/** Keys of a prompt whose first half is its group's, for blocks of one token; larger blocks use the first ones of them. */
function chainOf(group: number, tokens: number): number[] {
  return Array.from({ length: tokens }, (_, at) => group * 1000 + at + 1);
}

describe("any workload on any engine", () => {
  it("every token comes once, none early, the pool is never exceeded, time never goes back, nothing is left over", () => {
    fc.assert(
      fc.property(settings, arrivals, fc.integer({ min: 1, max: 3 }), (engineSettings, requests, ranks) => {
        const engine = createSimulatedEngine(engineSettings, 0, ranks);
        // Full blocks of the prompt only, as `engineBlockKeys` gives them.
        const { blockTokens = 1 } = engineSettings;
        const keyed = requests.map((request) => ({
          ...request,
          blockKeys: (request.blockKeys ?? []).slice(0, Math.floor(request.inputTokens / blockTokens)),
        }));
        const tokens = new Map<number, number>();
        const ended = new Set<number>();
        let before = 0;
        const rows = drive(engine, keyed, (nowMs, result) => {
          expect(nowMs).toBeGreaterThanOrEqual(before);
          before = nowMs;
          for (let at = 0; at < result.tokenRequests; at++) {
            const id = result.tokenIds[at]!;
            expect(ended.has(id)).toBe(false);
            const first = !tokens.has(id);
            // A token needs a pass of at least 1 ms, the first one a prefill of 10.
            if (first) expect(nowMs).toBeGreaterThanOrEqual((requests[id]?.atMs ?? 0) + 10);
            tokens.set(id, (tokens.get(id) ?? 0) + result.tokenCounts[at]!);
          }
          for (const id of [...result.finished, ...result.rejected]) {
            expect(ended.has(id)).toBe(false);
            ended.add(id);
          }
          const loads = engine.loads();
          expect(loads.activeBlocks + loads.cachedBlocks).toBeLessThanOrEqual(loads.totalBlocks);
        });
        expect(ended.size).toBe(requests.length);
        for (const request of requests)
          expect(tokens.get(request.id) ?? request.outputTokens).toBe(request.outputTokens);
        expect(engine.loads()).toMatchObject({ running: 0, waiting: 0, waitingTokens: 0, activeBlocks: 0 });
        for (const row of rows) {
          if (engineSettings.flavour === "sglang" && ranks === 1)
            expect(Math.min(row.prefillTokens, row.decodeRequests)).toBe(0);
        }
      }),
      { numRuns: 500 },
    );
  });

  it("the same workload gives the same passes", () => {
    fc.assert(
      fc.property(settings, arrivals, (engineSettings, requests) => {
        const run = () => drive(createSimulatedEngine(engineSettings, 0), requests);
        expect(run()).toEqual(run());
      }),
      { numRuns: 50 },
    );
  });
});

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { EngineSettings } from "../mocker/engine-config.ts";
import { createSimulatedEngine } from "../mocker/timed-engine.ts";
import { fixedTiming } from "../mocker/timing/fixed.ts";
import type { TraceRequest } from "../traces/trace-request.ts";
import { type FleetShape, type ReplayOptions, replay } from "./replay.ts";
import { reportOf } from "./report.ts";
import { outcomes } from "./request-log.ts";

/** A pass with prefill takes 10 ms, plus 1 when it gives tokens. */
const timing = fixedTiming(10, 1);

function request(arrivalMs: number, inputTokens: number, outputTokens: number, more: Partial<TraceRequest> = {}) {
  return { arrivalMs, inputTokens, outputTokens, blockIds: [], blockTokens: 16, ...more };
}

function options(more: Partial<ReplayOptions> = {}, settings: Partial<EngineSettings> = {}): ReplayOptions {
  const engine = () => createSimulatedEngine({ blockTokens: 16, timing, ...settings }, 0);
  return { fleet: { workers: 1 }, engine, blockTokens: 16, routerMode: "round-robin", seed: 1, ...more };
}

describe("worked by hand", () => {
  it("two requests on one vLLM engine", () => {
    // pass 1   0 - 11   prefill of 0, its first token
    // pass 2  11 - 22   0 decodes its second and last token; prefill of 1, which came at 5, its first token
    // pass 3  22 - 23   1 decodes its second
    // pass 4  23 - 24   1 decodes its third
    const result = replay([request(0, 20, 2), request(5, 20, 3)], options());
    const { log } = result;
    expect([...log.firstTokenMs]).toEqual([11, 22]);
    expect([...log.endedMs]).toEqual([22, 24]);
    expect([...log.gaps]).toEqual([11, 1, 1]);
    const report = reportOf({ ...result, workers: [] }, { slo: { ttftMs: 11 }, gpusPerWorker: 1 });
    expect(report.ttft).toMatchObject({ mean: (11 + 17) / 2, max: 17 });
    expect(report.tpot).toMatchObject({ mean: (11 + 1) / 2 });
    expect(report).toMatchObject({ duration_ms: 24, total_output_tokens: 5, goodput_ratio: 0.5 });
  });

  it("two requests on one SGLang engine: prefill has a pass of its own", () => {
    // pass 1   0 - 10   prefill of 0, its first token
    // pass 2  10 - 20   prefill of 1, its first token; 0 waits
    // pass 3  20 - 21   both decode: 0 is done
    // pass 4  21 - 22   1 decodes its third
    const { log } = replay([request(0, 20, 2), request(5, 20, 3)], options({}, { flavour: "sglang" }));
    expect([...log.firstTokenMs]).toEqual([10, 20]);
    expect([...log.endedMs]).toEqual([21, 22]);
    expect([...log.gaps]).toEqual([11, 1, 1]);
  });

  it("a request that arrives when a pass ends is in the next one", () => {
    const { log } = replay([request(0, 20, 2), request(11, 20, 1)], options());
    expect([...log.endedMs]).toEqual([22, 22]);
  });

  it("a turn follows the end of the one before by its delay, and finds its prompt in the cache", () => {
    const turns = [
      request(0, 32, 2, { session: "a", blockIds: [1, 2] }),
      request(3, 48, 1, { session: "a", delayMs: 100, blockIds: [1, 2, 3] }),
    ];
    const result = replay(turns, options());
    expect([...result.log.dispatchedMs]).toEqual([0, 112]);
    expect([...result.log.endedMs]).toEqual([12, 123]);
    const report = reportOf(result, { slo: {}, gpusPerWorker: 2 });
    expect(report).toMatchObject({ recomputed_prefill_tokens: 0, prefix_cache_reused_ratio: 32 / 80 });
    expect(report.gpu_hours).toBeCloseTo((0.123 * 2) / 3600, 12);
  });

  it("the same turns on two workers in turn compute the shared prefix again", () => {
    const turns = [request(0, 32, 1, { blockIds: [1, 2] }), request(50, 48, 1, { blockIds: [1, 2, 3] })];
    const report = reportOf(replay(turns, options({ fleet: { workers: 2 } })), { slo: {}, gpusPerWorker: 1 });
    expect(report).toMatchObject({ recomputed_prefill_tokens: 32, prefix_cache_reused_ratio: 0 });
    expect(report.workers.map(({ requests }) => requests)).toEqual([1, 1]);
  });

  it("a rejected request needs no prefill, and leaves nothing that a later one could have found", () => {
    const turns = [
      request(0, 320, 1, { blockIds: Array.from({ length: 20 }, (_, block) => block) }),
      request(50, 48, 1, { blockIds: [0, 1, 2] }),
      request(60, 48, 1, { blockIds: [0, 1, 2] }),
    ];
    const result = replay(turns, options({ fleet: { workers: 2 } }, { blocks: 8 }));
    expect([...result.log.outcome]).toEqual([outcomes.rejected, outcomes.completed, outcomes.completed]);
    // The second computes 48; the third, elsewhere, 48 instead of the 16 of its last block.
    expect(result.neededPrefillTokens).toBe(48 + 16);
    expect(reportOf(result, { slo: {}, gpusPerWorker: 1 }).recomputed_prefill_tokens).toBe(32);
  });

  it("with a concurrency of 1 each request is sent when the one before has ended, whatever its time", () => {
    const { log } = replay([request(0, 20, 1), request(900, 20, 1), request(5, 20, 1)], options({ concurrency: 1 }));
    expect([...log.dispatchedMs]).toEqual([0, 11, 22]);
  });

  it("a session keeps its place between its turns", () => {
    const turn = (more: Partial<TraceRequest> = {}) => request(0, 20, 1, more);
    const turns = [turn({ session: "a" }), turn(), turn({ session: "a", delayMs: 50 })];
    const { log } = replay(turns, options({ concurrency: 1 }));
    expect([...log.dispatchedMs]).toEqual([0, 72, 61]);
  });

  it("a request that fits into no pool is rejected, and its place is free again", () => {
    const requests = [request(0, 200, 1), request(0, 20, 1)];
    const result = replay(requests, options({ concurrency: 1 }, { blocks: 4 }));
    expect([...result.log.outcome]).toEqual([outcomes.rejected, outcomes.completed]);
    const report = reportOf(result, { slo: {}, gpusPerWorker: 1 });
    expect(report).toMatchObject({ rejected_requests: 1, completed_requests: 1, incomplete_requests: 0 });
  });

  it("an answer that is too long for any machine is rejected", () => {
    const { log } = replay([request(0, 20, 2 ** 40)], options());
    expect([...log.outcome]).toEqual([outcomes.rejected]);
  });

  it("least-loaded sends to the worker that is free: loads end with their requests", () => {
    const requests = [request(0, 20, 50), request(1, 20, 1), request(30, 20, 1), request(60, 20, 1)];
    const { workers } = replay(requests, options({ fleet: { workers: 2 }, routerMode: "least-loaded" }));
    expect(workers.map((worker) => worker.requests).sort()).toEqual([1, 3]);
  });
});

describe("prefill and decode apart, worked by hand", () => {
  const pair = (order: "source" | "target", flavour: "vllm" | "sglang"): ReplayOptions => ({
    ...options(),
    fleet: {
      prefillWorkers: 1,
      decodeWorkers: 1,
      kvTransfer: { order, linkBytesPerSecond: 100_000, kvBytesPerToken: 100 }, // a token in 1 ms
    },
    engine: (role) =>
      createSimulatedEngine({ blockTokens: 16, timing, flavour, role: role === "decode" ? "decode" : "prefill" }, 0),
  });

  it("source first: prefill 10 ms, 20 tokens of KV in 20 ms, then a token each ms", () => {
    const result = replay([request(0, 20, 3)], pair("source", "vllm"));
    expect([...result.log.firstTokenMs, ...result.log.secondTokenMs, ...result.log.endedMs]).toEqual([10, 31, 32]);
    expect(reportOf(result, { slo: {}, gpusPerWorker: 1 })).toMatchObject({
      prefill_worker_seconds: 0.032,
      decode_worker_seconds: 0.032,
      recomputed_prefill_tokens: 0,
      prefix_cache_reused_ratio: 0,
    });
  });

  it("target first: what the decode worker has cached is not moved", () => {
    const blockIds = [1, 2];
    const requests = [request(0, 32, 3, { blockIds }), request(100, 32, 3, { blockIds })];
    const { log } = replay(requests, pair("target", "sglang"));
    expect([...log.firstTokenMs]).toEqual([10, 110]);
    // 32 tokens are moved for the first; for the second none.
    expect([...log.endedMs]).toEqual([44, 112]);
  });

  it("an answer of one token needs no decode worker", () => {
    const { log, workers } = replay([request(0, 20, 1)], pair("source", "vllm"));
    expect([...log.endedMs]).toEqual([10]);
    expect(workers.map(({ id, requests }) => `${id} ${requests}`)).toEqual(["prefill-1 1", "decode-1 0"]);
  });
});

it("an empty workload gives a report without numbers that nobody measured", () => {
  const report = reportOf(replay([], options()), { slo: { ttftMs: 1 }, gpusPerWorker: 1 });
  expect(report).toMatchObject({ num_requests: 0, duration_ms: 0, ttft: null, itl: null, goodput_ratio: 0 });
  expect(report.gpu_seconds_per_qualified_request).toBeNull();
});

const traces: fc.Arbitrary<TraceRequest[]> = fc
  .array(
    fc.record({
      arrivalMs: fc.nat(200),
      inputTokens: fc.integer({ min: 1, max: 120 }),
      outputTokens: fc.integer({ min: 1, max: 30 }),
      session: fc.option(fc.constantFrom("a", "b"), { nil: undefined }),
      delayMs: fc.nat(50),
      group: fc.nat(2),
    }),
    { maxLength: 25 },
  )
  .map((rows) =>
    rows.map(({ group, session, delayMs, ...row }) => ({
      ...row,
      blockTokens: 16,
      blockIds: Array.from({ length: Math.ceil(row.inputTokens / 16) }, (_, block) => group * 100 + block),
      ...(session === undefined ? {} : { session, delayMs }),
    })),
  );

const shapes: fc.Arbitrary<FleetShape> = fc.oneof(
  fc.record({ workers: fc.integer({ min: 1, max: 4 }) }),
  fc.record({
    prefillWorkers: fc.integer({ min: 1, max: 3 }),
    decodeWorkers: fc.integer({ min: 1, max: 3 }),
    kvTransfer: fc.record({
      order: fc.constantFrom("source" as const, "target" as const),
      linkBytesPerSecond: fc.constantFrom(100_000, 1_000_000),
      kvBytesPerToken: fc.constant(100),
    }),
  }),
);

const fleets = fc.record({
  fleet: shapes,
  routerMode: fc.constantFrom(
    "round-robin" as const,
    "random" as const,
    "power-of-two" as const,
    "least-loaded" as const,
  ),
  seed: fc.nat(1000),
  concurrency: fc.option(fc.integer({ min: 1, max: 4 }), { nil: undefined }),
  flavour: fc.constantFrom("vllm" as const, "sglang" as const),
  blocks: fc.integer({ min: 4, max: 40 }),
  acceptRates: fc.constantFrom([], [0.6, 0.4]),
});

describe("any workload on any fleet", () => {
  it("every request ends once with all its tokens, none early; no pool is exceeded; time never goes back", () => {
    fc.assert(
      fc.property(traces, fleets, (requests, fleet) => {
        let latestMs = 0;
        const engines: Engine[] = [];
        const result = run(requests, fleet, (engine) => {
          engines.push(engine);
          const step = engine.step.bind(engine);
          engine.step = (nowMs) => {
            expect(nowMs).toBeGreaterThanOrEqual(latestMs);
            latestMs = nowMs;
            const outcome = step(nowMs);
            const { activeBlocks, cachedBlocks, totalBlocks } = engine.loads();
            expect(activeBlocks + cachedBlocks).toBeLessThanOrEqual(totalBlocks);
            return outcome;
          };
        });
        const { log } = result;
        let gaps = 0;
        for (const [id, { outputTokens, arrivalMs, session }] of requests.entries()) {
          expect(log.outcome[id]).not.toBe(outcomes.incomplete);
          if (fleet.concurrency === undefined && session === undefined) expect(log.dispatchedMs[id]).toBe(arrivalMs);
          if (log.outcome[id] === outcomes.rejected) {
            // A prefill worker may give the first token of what then fits into no decode worker.
            expect(log.given[id]).toBeLessThanOrEqual("workers" in fleet.fleet ? 0 : 1);
            continue;
          }
          expect(log.given[id]).toBe(outputTokens);
          gaps += outputTokens - 1;
          // A first token needs a prefill of 10 ms, and each burst of at most three tokens a pass of 1 ms.
          expect(log.firstTokenMs[id]).toBeGreaterThanOrEqual(log.dispatchedMs[id]! + 10);
          const bursts = Math.ceil((outputTokens - 1) / 3);
          expect(log.endedMs[id]).toBeGreaterThanOrEqual(log.firstTokenMs[id]! + bursts);
        }
        expect(log.gaps.length).toBe(gaps);
        for (const engine of engines) {
          expect(engine.loads()).toMatchObject({ running: 0, waiting: 0, activeBlocks: 0 });
        }
        const report = reportOf(result, { slo: {}, gpusPerWorker: 1 });
        expect(report.completed_requests + report.rejected_requests).toBe(requests.length);
        const fronts = result.workers.filter(({ role }) => role !== "decode");
        expect(fronts.reduce((sum, worker) => sum + worker.requests, 0)).toBe(requests.length);
      }),
      { numRuns: 200 },
    );
  });

  it("the same arguments give the same report, bit by bit", () => {
    fc.assert(
      fc.property(traces, fleets, (requests, fleet) => {
        const report = () => JSON.stringify(reportOf(run(requests, fleet), { slo: {}, gpusPerWorker: 1 }));
        expect(report()).toBe(report());
      }),
      { numRuns: 50 },
    );
  });
});

type Engine = ReturnType<ReplayOptions["engine"]>;

function run(
  requests: readonly TraceRequest[],
  fleet: typeof fleets extends fc.Arbitrary<infer Fleet> ? Fleet : never,
  watch: (engine: Engine) => void = () => {},
) {
  const { flavour, blocks, acceptRates, concurrency, ...rest } = fleet;
  return replay(requests, {
    ...rest,
    blockTokens: 16,
    ...(concurrency === undefined ? {} : { concurrency }),
    engine: (role, worker) => {
      const sglang = { chunkedPrefillTokens: 64 };
      const settings = { flavour, blocks, acceptRates, sglang, blockTokens: 16, seed: worker, timing };
      const engine = createSimulatedEngine({ ...settings, role: role === "worker" ? "aggregated" : role }, 0);
      watch(engine);
      return engine;
    },
  });
}

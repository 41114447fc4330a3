import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import type { EngineSettings } from "../mocker/engine-config.ts";
import { type FaultKind, parseFaultScript } from "../mocker/fault-script.ts";
import { createSimulatedEngine } from "../mocker/timed-engine.ts";
import { fixedTiming } from "../mocker/timing/fixed.ts";
import { LoadBook } from "../router/load/load-book.ts";
import type { TraceRequest } from "../traces/trace-request.ts";
import { type FleetShape, type ReplayOptions, replay } from "./replay.ts";
import { reportOf } from "./report.ts";
import { outcomes } from "./request-log.ts";
import { Timeline } from "./timeline.ts";

/** A pass with prefill takes 10 ms, plus 1 when it gives tokens. */
const timing = fixedTiming(10, 1);

function request(arrivalMs: number, inputTokens: number, outputTokens: number): TraceRequest {
  return { arrivalMs, inputTokens, outputTokens, blockIds: [], blockTokens: 16 };
}

/** With the script as the user writes it. */
function run(requests: readonly TraceRequest[], faults: unknown, more: Partial<ReplayOptions> = {}) {
  return replay(requests, {
    fleet: { workers: 1 },
    engine: (role) =>
      createSimulatedEngine({ blockTokens: 16, timing, role: role === "worker" ? "aggregated" : role }, 0),
    blockTokens: 16,
    routerMode: "round-robin",
    seed: 1,
    faults: parseFaultScript(faults),
    ...more,
  });
}

const report = (result: ReturnType<typeof replay>) => reportOf(result, { slo: {}, gpusPerWorker: 1 });

describe("worked by hand", () => {
  it("a killed worker's request goes on elsewhere, behind its tokens; its time to first token stays", () => {
    // 0 - 11 first token, 12, 13 tokens 2 and 3 on worker-1, which dies at 13.5; prefill of 23 tokens on worker-2: 24.5
    const result = run([request(0, 20, 5)], [{ at: 13.5, kill: "worker-1" }], { fleet: { workers: 2 } });
    expect([...result.log.firstTokenMs, ...result.log.endedMs]).toEqual([11, 25.5]);
    expect([...result.log.gaps]).toEqual([1, 1, 11.5, 1]);
    expect(report(result)).toMatchObject({ completed_requests: 1, failed_requests: 0, migrations: 1 });
    // worker-1 until 13.5, worker-2 to the end
    expect(report(result).decode_worker_seconds).toBeCloseTo((13.5 + 25.5) / 1000, 12);
  });

  it("with nobody there an accepted request waits for the first one that comes back; a new one fails at once", () => {
    const result = run([request(0, 20, 3), request(15, 20, 3)], [{ at: 11.5, kill: "all", restartAfter: 100 }]);
    expect([...result.log.outcome]).toEqual([outcomes.completed, outcomes.failed]);
    expect([...result.log.endedMs]).toEqual([111.5 + 12, 15]);
  });

  it("a request that loses its worker more often than it may move fails", () => {
    const kills = [1, 2].map((at) => ({ at, kill: "worker-1", restartAfter: 0.5 }));
    expect([...run([request(0, 20, 3)], kills, { migrationLimit: 2 }).log.outcome]).toEqual([outcomes.completed]);
    const failed = run([request(0, 20, 3)], kills, { migrationLimit: 1 });
    expect([...failed.log.outcome]).toEqual([outcomes.failed]);
    expect(report(failed)).toMatchObject({ failed_requests: 1, migrations: 1, completed_requests: 0 });
  });

  it("a frozen worker's requests wait; frozen for good they stay incomplete", () => {
    const { log } = run([request(0, 20, 3)], [{ at: 5, freeze: "worker-1", for: 50 }]);
    expect([...log.firstTokenMs, ...log.endedMs]).toEqual([61, 63]);
    expect([...run([request(0, 20, 3)], [{ at: 5, freeze: "all" }]).log.outcome]).toEqual([outcomes.incomplete]);
  });

  it("a worker that is started again during a freeze is frozen until its end", () => {
    const script = [
      { at: 1, freeze: "worker-1", for: 99 },
      { at: 2, kill: "worker-1", restartAfter: 3 },
    ];
    expect([...run([request(0, 20, 1)], script).log.endedMs]).toEqual([111]);
  });

  it("passes that begin while slowed down take as many times as long", () => {
    const { log } = run([request(0, 20, 3)], [{ at: 5, slowDown: "all", factor: 4, for: 8 }]);
    // pass 2 begins at 11 and takes 4 ms instead of 1; pass 3 begins at 15, after the end
    expect([...log.firstTokenMs, ...log.secondTokenMs, ...log.endedMs]).toEqual([11, 15, 16]);
  });

  it("what a worker makes while it is cut off arrives when the link is back, and new requests go elsewhere", () => {
    const requests = [request(0, 20, 4), request(20, 20, 1)];
    const result = run(requests, [{ at: 11.5, cutLink: "worker-1", for: 100 }], { fleet: { workers: 2 } });
    expect([...result.log.endedMs]).toEqual([111.5, 31]);
    expect([...result.log.gaps]).toEqual([100.5, 0, 0]);
    expect(result.workers.map((worker) => worker.requests)).toEqual([1, 1]);
    expect(report(result).migrations).toBe(0);
  });

  it("a worker that is cut off for 10 s is given up, and what it made unseen is made again", () => {
    const requests = [request(0, 20, 4), request(0, 20, 1)];
    const result = run(requests, [{ at: 11.5, cutLink: "worker-1", for: "30s" }], { fleet: { workers: 2 } });
    expect([...result.log.outcome]).toEqual([outcomes.completed, outcomes.completed]);
    expect(result.log.endedMs[0]).toBe(10_011.5 + 11 + 2);
    expect([...result.log.given]).toEqual([4, 1]);
    expect(report(result).migrations).toBe(1);
  });

  it("the run lasts as long as work goes on for requests that never end, and no longer than the last end", () => {
    const requests = [request(0, 20, 1), request(20, 20, 10)];
    // The second one is given up at 10,025, and nobody comes back for it.
    const cut = report(run(requests, [{ at: 25, cutLink: "worker-1" }]));
    expect(cut).toMatchObject({ duration_ms: 10_025, completed_requests: 1, incomplete_requests: 1 });
    expect(cut.workers[0]!.busy_ratio).toBeCloseTo((11 + 20) / 10_025, 12);
    const late = run(requests, [{ at: "1h", kill: "worker-1", restartAfter: "1h" }]);
    expect(report(late).duration_ms).toBe(40);
    expect(late.workers[0]!.deaths).toEqual([]);
  });

  it("a timeline shows what was before a fault, and what was after it", () => {
    const timeline = new Timeline();
    // The only pass takes 500 ms: nothing but the faults happens meanwhile.
    const slow = () => createSimulatedEngine({ blockTokens: 16, timing: fixedTiming(500, 0) }, 0);
    run([request(0, 20, 1)], [{ at: 250, kill: "worker-1", restartAfter: 200 }], { engine: slow, timeline });
    const loads = timeline.moments.map(({ atMs, requests }) => [atMs, requests[0]]);
    expect(loads.slice(0, 6)).toEqual([[0, 0], [100, 1], [200, 1], [300, 0], [400, 0], [500, 1]]); // biome-ignore format: a table
  });

  it("a cut that ends after exactly 10 s is survived, also when an earlier one ended just before", () => {
    const script = [
      { at: 1, cutLink: "worker-1", for: 1 },
      { at: 11.5, cutLink: "worker-1", for: "10s" },
    ];
    const result = run([request(0, 20, 4)], script);
    expect([...result.log.endedMs]).toEqual([10_011.5]);
    expect(report(result).migrations).toBe(0);
  });

  it("a name that no worker has is an error that says which there are", () => {
    expect(() => run([], [{ at: 1, kill: "worker-3" }], { fleet: { workers: 2 } })).toThrow(
      'faults[0].kill: there is no worker "worker-3"; the workers are worker-1, worker-2.',
    );
  });
});

describe.each(["source", "target"] as const)("prefill and decode apart, %s first", (order) => {
  const kvTransfer = { order, linkBytesPerSecond: 100_000, kvBytesPerToken: 100 }; // a token in 1 ms
  const fleet = { prefillWorkers: 2, decodeWorkers: 2, kvTransfer };

  // Prefill 0 - 10, transfer of 20 tokens until 30, then a token per ms.
  const undisturbed = run([request(0, 20, 5)], [], { fleet }).log;
  const transferFrom = undisturbed.firstTokenMs[0]!;

  it("death of the prefill worker before the transfer is over: again on another pair, tokens kept", () => {
    const result = run([request(0, 20, 5)], [{ at: transferFrom + 5, kill: "prefill-1" }], { fleet });
    expect([...result.log.outcome, ...result.log.given]).toEqual([outcomes.completed, 5]);
    expect(result.log.firstTokenMs[0]).toBe(transferFrom);
    expect(result.workers.map((worker) => worker.requests)).toEqual([1, 1, 1, 1]);
    expect(report(result).migrations).toBe(1);
  });

  it("death of the prefill worker after the transfer does not matter", () => {
    const at = undisturbed.secondTokenMs[0]! + 0.5;
    const result = run([request(0, 20, 5)], [{ at, kill: "prefill-1" }], { fleet });
    expect([...result.log.endedMs]).toEqual([...undisturbed.endedMs]);
    expect(report(result).migrations).toBe(0);
  });

  it("death of the decode worker: prefill of prompt and tokens so far on a new pair", () => {
    const at = undisturbed.secondTokenMs[0]! + 0.5;
    const result = run([request(0, 20, 5)], [{ at, kill: "decode-1" }], { fleet });
    expect([...result.log.outcome, ...result.log.given]).toEqual([outcomes.completed, 5]);
    expect(report(result).migrations).toBe(1);
    expect(result.workers.map(({ prefillTokens }) => prefillTokens).slice(0, 2)).toEqual([20, 22]);
  });

  it("a cut link delays the transfer by as much, and nobody is given up", () => {
    const script = [{ at: transferFrom + 5, cutLink: "prefill-1", for: "1m" }];
    const result = run([request(0, 20, 5)], script, { fleet });
    expect(result.log.endedMs[0]).toBeCloseTo(undisturbed.endedMs[0]! + 60_000, 6);
    expect(report(result).migrations).toBe(0);
  });
});

const workloads = fc.array(
  fc.record({
    arrivalMs: fc.nat(200),
    inputTokens: fc.integer({ min: 1, max: 120 }),
    outputTokens: fc.integer({ min: 1, max: 30 }),
    group: fc.nat(2),
  }),
  { maxLength: 20 },
);

const shapes: fc.Arbitrary<FleetShape> = fc.oneof(
  fc.record({ workers: fc.integer({ min: 2, max: 4 }) }),
  fc.record({
    prefillWorkers: fc.integer({ min: 2, max: 3 }),
    decodeWorkers: fc.integer({ min: 2, max: 3 }),
    kvTransfer: fc.record({
      order: fc.constantFrom("source" as const, "target" as const),
      linkBytesPerSecond: fc.constantFrom(100_000, 1_000_000),
      kvBytesPerToken: fc.constant(100),
    }),
  }),
);

/** Which worker is a number here: the fleet is not known yet. */
const scripts = fc.array(
  fc.record({
    at: fc.nat(400),
    kind: fc.constantFrom<FaultKind>("kill", "freeze", "slowDown", "dropEvents", "cutLink"),
    worker: fc.option(fc.nat(9), { nil: undefined }),
    length: fc.option(fc.oneof(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 9_990, max: 12_000 })), {
      nil: undefined,
    }),
    factor: fc.constantFrom<number>(0.5, 3, 10),
  }),
  { maxLength: 12 },
);

const settings = fc.record({
  routerMode: fc.constantFrom(
    "round-robin" as const,
    "random" as const,
    "power-of-two" as const,
    "least-loaded" as const,
  ),
  seed: fc.nat(1000),
  concurrency: fc.option(fc.integer({ min: 1, max: 4 }), { nil: undefined }),
  flavour: fc.constantFrom("vllm" as const, "sglang" as const),
  blocks: fc.integer({ min: 6, max: 40 }),
  migrationLimit: fc.nat(3),
});

const cases = fc.tuple(workloads, shapes, scripts, settings);
type Case = typeof cases extends fc.Arbitrary<infer It> ? It : never;

describe("any script on any fleet", () => {
  it("each request ends once, with all its tokens when completed; only one that nobody can serve stays open; nothing is left booked or held", () => {
    fc.assert(
      fc.property(cases, (sample) => {
        const book = vi.spyOn(LoadBook.prototype, "book");
        const { result, engines, openEnded } = runCase(sample);
        const booked = book.mock.contexts.map((owner, at) => [owner as LoadBook, book.mock.calls[at]![0]] as const);
        book.mockRestore();
        const { log } = result;
        for (const [id, { outputTokens }] of log.requests.entries()) {
          const outcome = log.outcome[id];
          if (outcome === outcomes.completed) expect(log.given[id]).toBe(outputTokens);
          else expect(log.given[id]).toBeLessThan(outputTokens);
          if (outcome === outcomes.incomplete) expect(openEnded).toBe(true);
          expect(log.migrations[id]).toBeLessThanOrEqual(sample[3].migrationLimit);
        }
        const counts = report(result);
        expect(
          counts.completed_requests + counts.rejected_requests + counts.failed_requests + counts.incomplete_requests,
        ).toBe(log.requests.length);
        for (const { busy_ratio } of counts.workers) expect(busy_ratio).toBeLessThan(1 + 1e-9);
        if (counts.incomplete_requests > 0) return;
        for (const [owner, workerId] of booked) expect(owner.requests(workerId)).toBe(0);
        for (const engine of engines) expect(engine.loads()).toMatchObject({ running: 0, waiting: 0, activeBlocks: 0 });
      }),
      { numRuns: 500 },
    );
  });

  it("the same arguments give the same report, bit by bit", () => {
    fc.assert(
      fc.property(cases, (sample) => {
        const text = () => JSON.stringify(report(runCase(sample).result));
        expect(text()).toBe(text());
      }),
      { numRuns: 50 },
    );
  });

  it("a script whose faults change nothing changes nothing", () => {
    fc.assert(
      fc.property(cases, ([workload, fleet, , rest]) => {
        const nothing: Case[2] = [{ at: 7, worker: undefined, kind: "slowDown", length: 50, factor: 1 }];
        const text = (script: Case[2]) => JSON.stringify(report(runCase([workload, fleet, script, rest]).result));
        expect(text(nothing)).toBe(text([]));
      }),
      { numRuns: 50 },
    );
  });
});

function runCase([workload, fleet, script, { flavour, blocks, concurrency, ...rest }]: Case) {
  const requests = workload.map(({ group, ...row }) => ({
    ...row,
    blockTokens: 16,
    blockIds: Array.from({ length: Math.ceil(row.inputTokens / 16) }, (_, block) => group * 100 + block),
  }));
  const names =
    "workers" in fleet
      ? Array.from({ length: fleet.workers }, (_, i) => `worker-${i + 1}`)
      : [
          ...Array.from({ length: fleet.prefillWorkers }, (_, i) => `prefill-${i + 1}`),
          ...Array.from({ length: fleet.decodeWorkers }, (_, i) => `decode-${i + 1}`),
        ];
  const entries = script.map(({ at, kind, worker, length, factor }) => ({
    at,
    [kind]: worker === undefined ? "all" : names[worker % names.length]!,
    ...(length === undefined ? {} : { [kind === "kill" ? "restartAfter" : "for"]: length }),
    ...(kind === "slowDown" ? { factor } : {}),
  }));
  // Without an end, a kill, a freeze or a cut may leave nobody.
  const openEnded = script.some(({ kind, length }) => length === undefined && /kill|freeze|cutLink/.test(kind));
  const engines: ReturnType<ReplayOptions["engine"]>[] = [];
  const result = run(requests, entries, {
    ...rest,
    fleet,
    ...(concurrency === undefined ? {} : { concurrency }),
    engine: (role, worker) => {
      const own: EngineSettings = {
        flavour,
        blocks,
        blockTokens: 16,
        timing,
        seed: worker,
        sglang: { chunkedPrefillTokens: 64 },
      };
      const engine = createSimulatedEngine({ ...own, role: role === "worker" ? "aggregated" : role }, 0);
      engines.push(engine);
      return engine;
    },
  });
  return { result, engines, openEnded };
}

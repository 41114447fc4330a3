import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { drive, line } from "./drive.contract.ts";
import type { DisaggregatedEngine } from "./engine.ts";
import type { EngineSettings } from "./engine-config.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

// A pass with prefill takes 10 ms, one that gives tokens 1 ms more.
function engine(settings: Partial<EngineSettings> = {}, ranks = 1): DisaggregatedEngine {
  return createSimulatedEngine({ blockTokens: 4, blocks: 100, timing: fixedTiming(10, 1), ...settings }, 0, ranks);
}

const request = (id: number, inputTokens = 8, outputTokens = 3) => ({ id, inputTokens, outputTokens, blockKeys: [] });

describe("time", () => {
  it("a step too early does nothing; a step begins a pass or ends one", () => {
    const simulated = engine();
    expect(simulated.nextWorkAtMs).toBe(Number.POSITIVE_INFINITY);
    simulated.submit(request(0), 5);
    expect([simulated.nextWorkAtMs, simulated.inPass]).toEqual([5, false]);
    expect(simulated.step(5)).toMatchObject({ tokenRequests: 0, admitted: [{ id: 0, cachedTokens: 0, again: false }] });
    expect([simulated.nextWorkAtMs, simulated.inPass]).toEqual([16, true]);
    expect(simulated.step(15).tokenRequests).toBe(0);
    expect(simulated.step(16).tokenRequests).toBe(1);
    expect([simulated.nextWorkAtMs, simulated.inPass]).toEqual([16, false]);
  });

  it("what arrives at the moment at which a pass ends is in the next one", () => {
    const arrivals = [request(0), { ...request(1), atMs: 11 }];
    expect(drive(engine(), arrivals).map(line)[1]).toBe("22 | 8+1 | 0 1 | - | -");
  });

  it("starts up before its first pass", () => {
    const rows = drive(engine({ startupMs: 500 }), [{ ...request(0), atMs: 100 }]);
    expect(rows[0]?.endMs).toBe(511);
  });

  it("says once that it went idle", () => {
    const idle: number[] = [];
    drive(engine(), [request(0), { ...request(1), atMs: 100 }], (now, result) => {
      if (result.metrics[0]?.wallTimeSeconds === 0) idle.push(now);
    });
    expect(idle).toEqual([13, 113]);
  });
});

describe("cancel", () => {
  it("of a waiting, a running and an unknown one", () => {
    const simulated = engine({ maxSequences: 1 });
    simulated.submit(request(0), 0);
    simulated.submit(request(1), 0);
    simulated.step(0);
    expect(simulated.loads()).toMatchObject({ running: 1, waiting: 1, waitingTokens: 8, activeBlocks: 2 });
    expect([simulated.cancel(0, 3), simulated.cancel(1, 3), simulated.cancel(2, 3)]).toEqual([true, true, false]);
    expect(simulated.loads()).toMatchObject({ running: 0, waiting: 0, activeBlocks: 0 });
    expect(simulated.step(11)).toMatchObject({ tokenRequests: 0, finished: [] }); // the pass is spent
    simulated.submit(request(0), 11); // the id is free again
    expect(simulated.nextWorkAtMs).toBe(11);
  });

  it("at any moment leaves nothing behind and no token after it", () => {
    const flavour = fc.constantFrom("vllm" as const, "sglang" as const);
    fc.assert(
      fc.property(flavour, fc.array(fc.nat(60), { minLength: 6, maxLength: 6 }), (kind, cancelSteps) => {
        const simulated = engine({
          flavour: kind,
          blocks: 14,
          sglang: { chunkedPrefillTokens: 8, clipMaxNewTokens: 1 },
        });
        const gone = new Set<number>();
        let steps = 0;
        drive(
          simulated,
          cancelSteps.map((_, id) => request(id, 5 + 4 * id, 9)),
          (now, result) => {
            for (let at = 0; at < result.tokenRequests; at++) expect(gone.has(result.tokenIds[at]!)).toBe(false);
            steps += 1;
            cancelSteps.forEach((step, id) => {
              if (step === steps && simulated.cancel(id, now)) gone.add(id);
            });
          },
        );
        expect(simulated.loads()).toMatchObject({ running: 0, waiting: 0, waitingTokens: 0, activeBlocks: 0 });
      }),
    );
  });
});

describe("limits", () => {
  it("rejects what can never run, and more than may wait", () => {
    const rejected: number[] = [];
    const settings = { blocks: 10, maxModelTokens: 30, maxWaiting: 2 };
    const arrivals = [request(0, 31), request(1, 30, 11), request(2), request(3), request(4)];
    drive(engine(settings), arrivals, (_, result) => rejected.push(...result.rejected));
    expect(rejected).toEqual([0, 1, 4]);
  });

  it("refuses an id that is in use, and settings that make no sense", () => {
    const simulated = engine();
    simulated.submit(request(0), 0);
    expect(() => simulated.submit(request(0), 0)).toThrow("in use");
    const bad = [{ blockTokens: 0 }, { blocks: 1.5 }, { startupMs: -1 }, { acceptRates: [2] }, { maxSequences: 0 }];
    for (const settings of bad) expect(() => engine(settings)).toThrow("Simulated engine");
    const sglang = { flavour: "sglang" as const, sglang: { chunkedPrefillTokens: 6 } };
    expect(() => engine(sglang)).toThrow("multiple of blockTokens");
  });
});

describe("faults", () => {
  it("freeze: a pass ends that much later, and no other begins", () => {
    const simulated = engine();
    simulated.submit(request(0), 0);
    simulated.step(0);
    simulated.faults.freeze(4, 100);
    expect(simulated.nextWorkAtMs).toBe(107);
    simulated.faults.freeze(5, Number.POSITIVE_INFINITY);
    expect(simulated.nextWorkAtMs).toBe(Number.POSITIVE_INFINITY);
    simulated.faults.thaw(50);
    expect(simulated.nextWorkAtMs).toBe(57);
    simulated.step(57);
    simulated.faults.freeze(57, 80);
    expect(simulated.nextWorkAtMs).toBe(80);
  });

  it("slow down: passes that begin meanwhile take longer", () => {
    const simulated = engine();
    simulated.faults.slowDown(3);
    expect(drive(simulated, [request(0)]).map((row) => row.endMs)).toEqual([33, 36, 39]);
  });

  it("kill: everything is lost; a restart begins with an empty engine and its start-up", () => {
    const simulated = engine({ startupMs: 20 });
    simulated.submit(request(3), 0);
    simulated.step(20);
    expect(simulated.faults.kill()).toEqual([3]);
    expect(simulated.nextWorkAtMs).toBe(Number.POSITIVE_INFINITY);
    expect(simulated.loads()).toMatchObject({ running: 0, activeBlocks: 0, totalBlocks: 0 });
    expect(() => simulated.submit(request(4), 30)).toThrow("dead");
    simulated.faults.restart(50);
    expect(drive(simulated, [{ ...request(3), atMs: 60 }])[0]?.endMs).toBe(81);
  });

  it("dropped KV events are lost, later ones are not", () => {
    const simulated = engine({ kvEvents: true });
    const seen: unknown[] = [];
    const collect = (_: number, result: { kvEvents: readonly unknown[] }) => seen.push(...result.kvEvents);
    simulated.faults.dropKvEvents(true);
    drive(simulated, [{ ...request(0, 8, 1), blockKeys: [1, 2] }], collect);
    simulated.faults.dropKvEvents(false);
    drive(simulated, [{ ...request(1, 8, 1), atMs: 50, blockKeys: [1, 3] }], collect);
    expect(seen).toEqual([{ kind: "stored", rank: 0, parent: 1, keys: [3] }]);
  });
});

describe("data-parallel ranks", () => {
  it("wait for the slowest, and get requests by their number", () => {
    const timing = {
      passMs: (pass: { prefillTokens: number; decodeRequests: number }) => pass.prefillTokens + pass.decodeRequests,
    };
    const simulated = engine({ timing }, 2);
    const arrivals = [request(0, 30, 2), request(1, 10, 2), request(2, 10, 2)];
    expect(drive(simulated, arrivals).map(line)).toEqual([
      "40 | 50+0 | 0 2 1 | - | -", // requests 0 and 2 on rank 0: 40 ms; request 1 on rank 1 is done after 10
      "42 | 0+3 | 0 2 1 | - | 0 2 1",
    ]);
  });

  it("have caches of their own, and events that name them", () => {
    const simulated = engine({ kvEvents: true }, 2);
    const ranks: number[] = [];
    const arrivals = [0, 1].map((rank) => ({ ...request(rank, 8, 1), rank, blockKeys: [1, 2] }));
    drive(simulated, arrivals, (_, result) => ranks.push(...result.kvEvents.map((event) => event.rank)));
    expect(ranks).toEqual([0, 1]);
  });
});

describe("disaggregated serving", () => {
  it("a prefill engine keeps the blocks of a finished request until they are released", () => {
    const simulated = engine({ role: "prefill", prefixCaching: false });
    expect(drive(simulated, [{ ...request(0), holdKv: true }]).map(line)).toEqual(["10 | 8+0 | 0 | - | 0"]);
    expect(simulated.loads()).toMatchObject({ running: 0, activeBlocks: 2 });
    expect([simulated.releaseHeld(0, 20), simulated.releaseHeld(0, 20)]).toEqual([true, false]);
    expect(simulated.loads().activeBlocks).toBe(0);
  });

  it("a decode engine goes on from KV that has arrived, without a prefill", () => {
    const arrived = { ...request(0, 9, 2), kv: "arrived" as const };
    expect(drive(engine({ role: "decode" }), [arrived]).map(line)).toEqual([
      "1 | 0+1 | 0 | - | -",
      "2 | 0+1 | 0 | - | 0",
    ]);
  });

  it.each(["vllm", "sglang"] as const)("a %s engine reserves blocks for KV that is awaited", (flavour) => {
    const simulated = engine({ flavour, role: "decode" });
    drive(simulated, [{ ...request(9, 9, 1), blockKeys: [1, 2] }]); // leaves [1, 2] in the cache
    simulated.submit({ ...request(0, 13, 2), blockKeys: [1, 2, 3], kv: "awaited" }, 100);
    expect(simulated.step(100).admitted).toEqual([{ id: 0, cachedTokens: 12, missingTokens: 4, again: false }]);
    expect(simulated.nextWorkAtMs).toBe(Number.POSITIVE_INFINITY);
    expect(simulated.loads()).toMatchObject({ running: 1, activeBlocks: 4 });
    expect(simulated.kvArrived(0, 150)).toBe(true);
    expect(simulated.kvArrived(0, 150)).toBe(false);
    expect(drive(simulated, []).map((row) => [row.endMs, row.prefillTokens])).toEqual([
      [151, 0],
      [152, 0],
    ]);
    expect(simulated.loads()).toMatchObject({ running: 0, activeBlocks: 0 });
  });

  it("one that is cancelled while it waits for its KV gives its blocks back", () => {
    const simulated = engine({ role: "decode" });
    simulated.submit({ ...request(0), kv: "awaited" }, 0);
    simulated.step(0);
    expect(simulated.cancel(0, 5)).toBe(true);
    expect(simulated.loads()).toMatchObject({ running: 0, activeBlocks: 0 });
  });
});

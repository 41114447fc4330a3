import { describe, expect, it } from "vitest";
import { CacheTiers } from "./cache-tiers.ts";
import { drive, line } from "./drive.contract.ts";
import type { EngineSettings } from "./engine-config.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

describe("tiers of the cache", () => {
  it("what one drops sinks into the next, longest unused first", () => {
    const tiers = new CacheTiers(
      [
        { blocks: 2, bytesPerSecond: 1000 },
        { blocks: 1, bytesPerSecond: 1000 },
      ],
      10,
    );
    for (const key of [1, 2, 3, 4]) tiers.sink(key); // 3 and 4 on top, 2 below, 1 gone
    expect([1, 2, 3, 4].map((key) => tiers.match([key], 0, 1))).toEqual([0, 1, 1, 1]);
    tiers.load(0, [3], 0); // used, so 4 is dropped next
    tiers.sink(5);
    expect([2, 3, 4, 5].map((key) => tiers.match([key], 0, 1))).toEqual([0, 1, 1, 1]);
    expect(tiers.match([3, 9, 4], 0, 3)).toBe(1);
    expect(tiers.match([9, 3, 4], 1, 2)).toBe(1);
    tiers.sink(6); // 3 sinks, and pushes 4 out
    expect([3, 4, 5, 6].map((key) => tiers.match([key], 0, 1))).toEqual([1, 0, 1, 1]);
  });

  // Blocks of 4 tokens, 100 bytes each: 400 bytes a block. A pass with a prefill takes 11 ms.
  const run = (settings: Partial<EngineSettings>) => {
    const base = { blockTokens: 4, blocks: 4, kvBytesPerToken: 100, timing: fixedTiming(10, 1) };
    const arrivals = [
      { id: 0, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2] },
      { id: 1, inputTokens: 13, outputTokens: 1, blockKeys: [7, 8, 9], atMs: 100 }, // all 4 blocks: 1 and 2 sink
      { id: 2, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2], atMs: 200 },
    ];
    return drive(createSimulatedEngine({ ...base, ...settings }, 0), arrivals).map(line)[2];
  };
  const host = { blocks: 10, bytesPerSecond: 400_000 }; // a block a millisecond

  it("a prompt waits for its blocks from below instead of computing them", () => {
    expect(run({})).toBe("211 | 9+0 | 2 | - | 2");
    expect(run({ tiers: [host] })).toBe("213 | 1+0 | 2 | - | 2"); // 2 blocks: 2 ms
  });

  it("so it does in SGLang's way, behind what the pool still has", () => {
    const settings = {
      flavour: "sglang",
      blocks: 6,
      blockTokens: 4,
      kvBytesPerToken: 100,
      timing: fixedTiming(10, 1),
    } as const;
    const chain = (id: number, atMs: number, keys: number[]) => ({
      id,
      inputTokens: 16,
      outputTokens: 1,
      blockKeys: keys,
      atMs,
    });
    const arrivals = [chain(0, 0, [1, 2, 3, 4]), chain(1, 100, [5, 6, 7, 8]), chain(2, 200, [1, 2, 3, 4])];
    const last = (tiers: EngineSettings["tiers"] = []) =>
      drive(createSimulatedEngine({ ...settings, tiers }, 0), arrivals).map(line)[2];
    // Request 1 evicts blocks 4 and 3. Of request 2, 1 and 2 are in the pool; the last token's block is computed.
    expect(last()).toBe("210 | 8+0 | 2 | - | 2");
    expect(last([host])).toBe("211 | 4+0 | 2 | - | 2");
  });

  it("a load from disk also goes over the host's link, at the slower one's speed", () => {
    const disk = { blocks: 10, bytesPerSecond: 200_000 };
    expect(run({ tiers: [{ ...host, blocks: 1 }, disk] })).toBe("215 | 1+0 | 2 | - | 2"); // 800 bytes at 200 a ms
  });

  it("loads share a link, and a cancelled one leaves it to the others", () => {
    const settings = { blockTokens: 4, blocks: 12, kvBytesPerToken: 100, timing: fixedTiming(10, 1), tiers: [host] };
    const engine = createSimulatedEngine(settings, 0);
    const chain = (id: number) => ({ id, inputTokens: 9, outputTokens: 1, blockKeys: [10 * id, 10 * id + 1] });
    const filler = {
      id: 9,
      inputTokens: 47,
      outputTokens: 1,
      blockKeys: Array.from({ length: 11 }, (_, at) => 900 + at),
    };
    drive(engine, [chain(1), chain(2), { ...filler, atMs: 50 }]);
    engine.submit(chain(1), 100);
    engine.submit(chain(2), 100);
    engine.step(100);
    expect(engine.loads()).toMatchObject({ running: 2, waiting: 0, activeBlocks: 4 });
    expect(engine.nextWorkAtMs).toBe(104); // 4 blocks over one link
    expect(engine.cancel(1, 102)).toBe(true);
    expect(engine.nextWorkAtMs).toBe(102); // to see whether somebody has room now
    engine.step(102);
    expect(engine.nextWorkAtMs).toBe(103);
    expect(drive(engine, []).map(line)).toEqual(["114 | 1+0 | 2 | - | 2"]);
    expect(engine.loads()).toMatchObject({ running: 0, activeBlocks: 0 });
  });
});

import { expect, it } from "vitest";
import { type Arrival, drive, line } from "./drive.contract.ts";
import type { EngineSettings } from "./engine-config.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

// Golden tables of the vLLM flavour, worked by hand. A pass with prefill takes 10 ms, one that gives tokens 1 ms more.
// Columns: end of the pass in ms | prefill tokens + decoding requests | got tokens | preempted | finished.
function table(settings: Partial<EngineSettings>, arrivals: readonly Arrival[]): string[] {
  const engine = createSimulatedEngine({ blockTokens: 4, timing: fixedTiming(10, 1), ...settings }, 0);
  return drive(engine, arrivals).map(line);
}

it("prefill and decode share a pass and its budget; a prompt is cut into chunks", () => {
  const requests = [
    { id: 0, inputTokens: 12, outputTokens: 2 },
    { id: 1, inputTokens: 6, outputTokens: 2 },
  ];
  expect(table({ maxBatchedTokens: 8 }, requests)).toEqual([
    "10 | 8+0 | - | - | -", //    8 of request 0's 12: the budget is spent, nobody has a complete prompt
    "21 | 8+0 | 0 | - | -", //    its last 4, which gives a token; 4 of request 1's 6
    "32 | 2+1 | 0 1 | - | 0", //  request 0 decodes, request 1's last 2
    "33 | 0+1 | 1 | - | 1", //    only decode: 1 ms
  ]);
});

it("without chunked prefill a prompt waits for a pass that has room for all of it", () => {
  const requests = [
    { id: 0, inputTokens: 5, outputTokens: 2 },
    { id: 1, inputTokens: 6, outputTokens: 1 },
  ];
  expect(table({ maxBatchedTokens: 8, chunkedPrefill: false }, requests)).toEqual([
    "11 | 5+0 | 0 | - | -", // 3 of the budget are left, request 1 needs 6
    "22 | 6+1 | 0 1 | - | 0 1",
  ]);
});

const pressed = [
  { id: 0, inputTokens: 7, outputTokens: 6 },
  { id: 1, inputTokens: 7, outputTokens: 4 },
];

it("when blocks run out, the newest loses all its KV and computes it again", () => {
  // 4 blocks of 4 tokens; both prompts fill 2 blocks but for one token.
  expect(table({ blocks: 4, prefixCaching: false }, pressed)).toEqual([
    "11 | 14+0 | 0 1 | - | -", // both prompts: 14 tokens, 4 blocks
    "12 | 0+2 | 0 1 | - | -", //  the 8th token of each; all blocks are full now
    "13 | 0+1 | 0 | 1 | -", //    request 0 needs a third block: request 1 goes; nobody is admitted in this pass
    "14 | 0+1 | 0 | - | -", //    request 1 knows 9 tokens now, 3 blocks; only 1 is free
    "15 | 0+1 | 0 | - | -",
    "16 | 0+1 | 0 | - | 0",
    "27 | 9+0 | 1 | - | -", //    request 1 again: 7 of the prompt and the 2 given, which gives its third token
    "28 | 0+1 | 1 | - | 1",
  ]);
});

it("with fifo preemption the oldest goes, even when it is the one that needs the block", () => {
  expect(table({ blocks: 4, prefixCaching: false, preemption: "fifo" }, pressed)).toEqual([
    "11 | 14+0 | 0 1 | - | -",
    "12 | 0+2 | 0 1 | - | -",
    "13 | 0+1 | 1 | 0 | -", //    request 0 gave way to itself; request 1 has room now
    "14 | 0+1 | 1 | - | 1", //    request 0 knows 9 tokens, 3 blocks; 1 is free
    "25 | 9+0 | 0 | - | -", //    the third token of request 0
    "26 | 0+1 | 0 | - | -",
    "27 | 0+1 | 0 | - | -",
    "28 | 0+1 | 0 | - | 0",
  ]);
});

it("begins a prompt only when all of it fits, although a chunk would", () => {
  const requests = [
    { id: 0, inputTokens: 8, outputTokens: 8 },
    { id: 1, inputTokens: 16, outputTokens: 1 },
  ];
  expect(table({ blocks: 5, maxBatchedTokens: 8, prefixCaching: false }, requests)).toEqual([
    "11 | 8+0 | 0 | - | -",
    "12 | 0+1 | 0 | - | -", // 2 blocks are free, request 1 needs 4
    "13 | 0+1 | 0 | - | -",
    "14 | 0+1 | 0 | - | -",
    "15 | 0+1 | 0 | - | -",
    "16 | 0+1 | 0 | - | -",
    "17 | 0+1 | 0 | - | -",
    "18 | 0+1 | 0 | - | 0",
    "28 | 8+0 | - | - | -",
    "39 | 8+0 | 1 | - | 1",
  ]);
});

it("counts blocks in use once, and cached ones as room that a hit consumes", () => {
  const arrivals = [
    { id: 0, inputTokens: 9, outputTokens: 2, blockKeys: [1, 2] },
    { id: 1, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2] },
    { id: 2, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2], atMs: 100 },
    { id: 3, inputTokens: 13, outputTokens: 1, blockKeys: [7, 8, 9], atMs: 200 },
  ];
  expect(table({ blocks: 4 }, arrivals)).toEqual([
    "11 | 10+0 | 0 1 | - | 1", // request 1 shares what request 0 computes in the same pass: 9 + 1 tokens, 3 + 1 blocks
    "12 | 0+1 | 0 | - | 0",
    "111 | 1+0 | 2 | - | 2", //   the prefix is still cached
    "211 | 13+0 | 3 | - | 3", //  4 blocks: all that is cached has to go
  ]);
});

it("serves higher priorities first, equal ones in order, up to the most sequences", () => {
  const requests = [
    { id: 0, inputTokens: 4, outputTokens: 1 },
    { id: 1, inputTokens: 4, outputTokens: 1, priority: 1 },
    { id: 2, inputTokens: 4, outputTokens: 1, priority: 1 },
    { id: 3, inputTokens: 4, outputTokens: 1 },
  ];
  expect(table({ maxSequences: 2 }, requests)).toEqual(["11 | 8+0 | 1 2 | - | 1 2", "22 | 8+0 | 0 3 | - | 0 3"]);
});

it("a prefill worker gives one token, and spends no time of a decode", () => {
  expect(table({ role: "prefill" }, [{ id: 0, inputTokens: 8, outputTokens: 9 }])).toEqual(["10 | 8+0 | 0 | - | 0"]);
});

it("speculative decoding gives what is accepted of the drafts, and never more than asked", () => {
  const request = { id: 0, inputTokens: 4, outputTokens: 6 };
  expect(table({ acceptRates: [1, 1] }, [request])).toEqual([
    "11 | 4+0 | 0 | - | -", // 1 token
    "12 | 0+1 | 0 | - | -", // 3
    "13 | 0+1 | 0 | - | 0", // 2 are left
  ]);
});

it("a preempted one that was in the pass already gives its tokens back to the budget", () => {
  const arrivals = [
    { id: 0, inputTokens: 6, outputTokens: 3, kv: "arrived" as const },
    { id: 1, inputTokens: 8, outputTokens: 3, kv: "arrived" as const },
    { id: 2, inputTokens: 4, outputTokens: 1 },
  ];
  const settings = { blocks: 5, maxBatchedTokens: 3, preemption: "fifo" as const, prefixCaching: false };
  expect(table(settings, arrivals)).toEqual([
    "11 | 1+2 | 0 1 | - | -", // one token each; all 5 blocks are taken
    "22 | 2+1 | 1 | 0 | -", //   request 1 needs a block: request 0 goes, and of 3 tokens 2 are left for request 2
    "33 | 1+1 | 1 2 | - | 1 2", // 1 block is free; request 0 needs 2
    "43 | 3+0 | - | - | -",
    "53 | 3+0 | - | - | -",
    "64 | 1+0 | 0 | - | -",
    "65 | 0+1 | 0 | - | 0",
  ]);
});

it("a preempted one waits before those who came later", () => {
  const arrivals = [...pressed, { id: 2, inputTokens: 3, outputTokens: 1, atMs: 12 }];
  expect(table({ blocks: 4, prefixCaching: false }, arrivals).slice(2)).toEqual([
    "13 | 0+1 | 0 | 1 | -",
    "14 | 0+1 | 0 | - | -", // a block is free, enough for request 2, but request 1 is first
    "15 | 0+1 | 0 | - | -",
    "16 | 0+1 | 0 | - | 0",
    "27 | 12+0 | 1 2 | - | 2",
    "28 | 0+1 | 1 | - | 1",
  ]);
});

it("does not count a hit as room: what is only cached is evictable already", () => {
  const arrivals = [
    { id: 0, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2] },
    { id: 1, inputTokens: 7, outputTokens: 4, atMs: 20 },
    { id: 2, inputTokens: 13, outputTokens: 1, blockKeys: [1, 2], atMs: 20 },
  ];
  expect(table({ blocks: 5 }, arrivals).slice(1)).toEqual([
    "31 | 7+0 | 1 | - | -", // request 2 needs 4 blocks; 1 is free and 2 are cached
    "32 | 0+1 | 1 | - | -",
    "33 | 0+1 | 1 | - | -",
    "34 | 0+1 | 1 | - | 1",
    "45 | 5+0 | 2 | - | 2", // blocks 1 and 2 are still cached
  ]);
});

it("with speculative decoding the last block of a hit is computed again", () => {
  const arrivals = [
    { id: 0, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2] },
    { id: 1, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2], atMs: 100 },
  ];
  expect(table({ acceptRates: [0] }, arrivals)[1]).toBe("111 | 5+0 | 1 | - | 1");
});

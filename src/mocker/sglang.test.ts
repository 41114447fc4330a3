import { expect, it } from "vitest";
import { type Arrival, drive, line } from "./drive.contract.ts";
import type { EngineSettings } from "./engine-config.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

// Golden tables of the SGLang flavour, worked by hand. A prefill pass takes 10 ms, a decode pass 1 ms.
// Columns: end of the pass in ms | prefill tokens + decoding requests | got tokens | preempted | finished.
function table(settings: Partial<EngineSettings>, arrivals: readonly Arrival[]): string[] {
  const timing = fixedTiming(10, 1);
  const engine = createSimulatedEngine({ flavour: "sglang", blockTokens: 4, blocks: 1000, timing, ...settings }, 0);
  return drive(engine, arrivals).map(line);
}

it("prefill goes first, in passes of its own: who decodes waits for it", () => {
  const requests = [
    { id: 0, inputTokens: 4, outputTokens: 3 },
    { id: 1, inputTokens: 12, outputTokens: 2, atMs: 5 },
  ];
  expect(table({ sglang: { chunkedPrefillTokens: 8 } }, requests)).toEqual([
    "10 | 4+0 | 0 | - | -",
    "20 | 8+0 | - | - | -", //   the first chunk of request 1; request 0 waits
    "30 | 4+0 | 1 | - | -", //   the second
    "31 | 0+2 | 0 1 | - | 1",
    "32 | 0+1 | 0 | - | 0",
  ]);
});

// Two prompts of 2 blocks in a pool of 6. The plan expects one more token of each, so both are admitted:
// 8 + 1 tokens each of 24. Both decode until they have filled 3 blocks each; the next token of each needs a block.
const pressed = [
  { id: 0, inputTokens: 7, outputTokens: 8 },
  { id: 1, inputTokens: 7, outputTokens: 8 },
];
const bold = { blocks: 6, sglang: { clipMaxNewTokens: 1, conservativeness: 0.01 } };
const untilFull = [
  "10 | 14+0 | 0 1 | - | -",
  "11 | 0+2 | 0 1 | - | -",
  "12 | 0+2 | 0 1 | - | -",
  "13 | 0+2 | 0 1 | - | -",
  "14 | 0+2 | 0 1 | - | -",
  "15 | 0+2 | 0 1 | - | -", // 7 + 5 tokens computed of each: 6 blocks
];

it("when a decode finds too few blocks, the one with the fewest tokens given is retracted", () => {
  expect(table({ ...bold, prefixCaching: false }, pressed)).toEqual([
    ...untilFull,
    "16 | 0+1 | 0 | 1 | -", // 6 given by both, prompts equal: the newer goes
    "17 | 0+1 | 0 | - | 0", // room for 8 tokens less the reserve; request 1 needs 16 + 1
    "27 | 13+0 | 1 | - | -", // 7 of the prompt and 6 given
    "28 | 0+1 | 1 | - | 1",
  ]);
});

it("a retracted one finds again what is still cached of it", () => {
  expect(table(bold, pressed)).toEqual([
    ...untilFull,
    "16 | 0+1 | 0 | 1 | -", // takes a block of request 1's three cached ones: the leaf
    "17 | 0+1 | 0 | - | 0",
    "27 | 5+0 | 1 | - | -", // 8 of its 13 tokens are cached
    "28 | 0+1 | 1 | - | 1",
  ]);
});

it("a careful plan admits one after the other", () => {
  // Pool of 24 tokens; each needs 8 of prompt and 8 of answer. The ratio starts at 0.7: after the first, 24 - 8 - 8 = 8.
  expect(table({ blocks: 6 }, pressed).slice(0, 2)).toEqual(["10 | 7+0 | 0 | - | -", "11 | 0+1 | 0 | - | -"]);
});

it("longest-prefix serves who finds most in the cache first", () => {
  const arrivals = [
    { id: 0, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2] },
    { id: 1, inputTokens: 9, outputTokens: 1, blockKeys: [3, 4], atMs: 20 },
    { id: 2, inputTokens: 9, outputTokens: 1, blockKeys: [1, 5], atMs: 20 },
    { id: 3, inputTokens: 9, outputTokens: 1, blockKeys: [1, 2], atMs: 20 },
  ];
  const order = (policy: "fifo" | "longest-prefix") => table({ sglang: { policy } }, arrivals)[1];
  expect(order("fifo")).toBe("30 | 15+0 | 1 2 3 | - | 1 2 3");
  expect(order("longest-prefix")).toBe("30 | 15+0 | 3 2 1 | - | 3 2 1");
});

it("longest-prefix lets one of those that begin alike go first, and the others find what it computed", () => {
  const chain = (first: number, rest: number) => [...Array.from({ length: 8 }, (_, at) => first + at), rest];
  const arrivals = [
    { id: 0, inputTokens: 37, outputTokens: 1, blockKeys: chain(100, 1) }, // 32 tokens in common with request 1
    { id: 1, inputTokens: 37, outputTokens: 1, blockKeys: chain(100, 2) },
    { id: 2, inputTokens: 37, outputTokens: 1, blockKeys: chain(200, 3) },
  ];
  const policy = "longest-prefix";
  expect(table({ sglang: { policy, chunkedPrefillTokens: 88 } }, arrivals)).toEqual([
    "10 | 79+0 | 0 2 1 | - | 0 2 1", // 37, 37, and 5 of request 1
  ]);
});

it("retracts who has given less, whoever came first", () => {
  const arrivals = [pressed[0]!, { ...pressed[1]!, atMs: 11 }];
  expect(table({ ...bold, prefixCaching: false }, arrivals)).toEqual([
    "10 | 7+0 | 0 | - | -",
    "11 | 0+1 | 0 | - | -",
    "21 | 7+0 | 1 | - | -", // request 0 has given 2, request 1 has given 1
    "22 | 0+2 | 0 1 | - | -",
    "23 | 0+2 | 0 1 | - | -", // 3 blocks each
    "24 | 0+2 | 0 1 | - | -",
    "25 | 0+2 | 0 1 | - | -",
    "26 | 0+1 | 0 | 1 | -", // request 0 needs a block; it has given 6, request 1 has given 5
    "27 | 0+1 | 0 | - | 0",
    "37 | 12+0 | 1 | - | -",
    "38 | 0+1 | 1 | - | -",
    "39 | 0+1 | 1 | - | 1",
  ]);
});

it("plans for the part of the answers that the new-token ratio says", () => {
  // 8 pages, 2 in use: 24 - 4 of overhead - 0.7 * 7 of request 0's answer leaves 15.1.
  const second = (outputTokens: number) =>
    table({ blocks: 8 }, [pressed[0]!, { id: 1, inputTokens: 7, outputTokens, atMs: 10 }])[1];
  expect(second(7)).toBe("20 | 7+0 | 1 | - | -"); // 8 + 7 fit
  expect(second(8)).toBe("11 | 0+1 | 0 | - | -"); // 8 + 8 do not
});

it("admits only what needs less than the room, and what the batch has budget for", () => {
  const arrivals = [pressed[0]!, { id: 1, inputTokens: 3, outputTokens: 4 }];
  expect(table({ blocks: 6 }, arrivals)[0]).toBe("10 | 7+0 | 0 | - | -"); // 24 - 16 leaves 8; 4 + 4 is as much
  expect(table({ maxBatchedTokens: 8 }, pressed).slice(0, 2)).toEqual(["10 | 7+0 | 0 | - | -", "20 | 7+0 | 1 | - | -"]);
});

it("after a retraction plans for what the rest has given so far and 20 steps, as a part of their answers", () => {
  // 40 pages. Both decode until they hold 20 each, with 74 of 100 tokens given; then request 1 goes, and the ratio is
  // (74 + 20) / 100. After the next token request 0 holds 21: 76 - 4 of overhead - 0.94 * 25 leaves 48.5 for request 2.
  const third = (outputTokens: number) => {
    const arrivals = [
      { id: 0, inputTokens: 7, outputTokens: 100 },
      { id: 1, inputTokens: 7, outputTokens: 100, atMs: 10 },
      { id: 2, inputTokens: 7, outputTokens, atMs: 94, priority: 1 },
    ];
    return table({ blocks: 40, prefixCaching: false, sglang: { conservativeness: 0.01 } }, arrivals).slice(74, 77);
  };
  const retraction = ["93 | 0+2 | 0 1 | - | -", "94 | 0+1 | 0 | 1 | -"];
  expect(third(40)).toEqual([...retraction, "104 | 7+0 | 2 | - | -"]); // 8 + 40 fit
  expect(third(41)).toEqual([...retraction, "95 | 0+1 | 0 | - | -"]); // 8 + 41 do not
});

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { seededRandom } from "../protocol/random.ts";
import { type ArrivalPattern, arrivalTimes, rateAt } from "./arrivals.ts";
import { type GeneratorSpec, generateTrace, type LengthSpec } from "./generate.ts";
import { PrefixTree } from "./prefix-tree.ts";
import { scaleRate } from "./rate-scale.ts";
import type { TraceRequest } from "./trace-request.ts";

const patterns: ArrivalPattern[] = [
  { kind: "constant", perSecond: 4 },
  { kind: "poisson", perSecond: 4 },
  { kind: "sine", minPerSecond: 1, maxPerSecond: 7, periodSeconds: 100 },
  { kind: "bursts", perSecond: 2, burstPerSecond: 12, everySeconds: 50, burstSeconds: 10 },
];

function arrivalsBefore(pattern: ArrivalPattern, seconds: number, seed: number): number[] {
  const times: number[] = [];
  for (const at of arrivalTimes(pattern, seededRandom(seed))) {
    if (at >= seconds * 1000) return times;
    times.push(at);
  }
  return times;
}

describe("arrival times", () => {
  it.each(patterns)("$kind: in order, at the asked rate, the same for the same seed", (pattern) => {
    const times = arrivalsBefore(pattern, 1000, 3);
    expect(times).toEqual(times.toSorted((a, b) => a - b));
    expect(times.length).toBeGreaterThan(3700); // four a second on average; five standard deviations
    expect(times.length).toBeLessThan(4300);
    expect(arrivalsBefore(pattern, 1000, 3)).toEqual(times);
  });

  it("follow the rate through its cycle", () => {
    const sine = patterns[2] as ArrivalPattern;
    expect([rateAt(sine, 25), rateAt(sine, 75)]).toEqual([7, 1]);
    const times = arrivalsBefore(sine, 1000, 5);
    const atPeak = times.filter((at) => (at / 1000) % 100 < 50).length;
    expect(atPeak).toBeGreaterThan(2 * (times.length - atPeak));
  });
});

const lengthSpec: fc.Arbitrary<LengthSpec> = fc.oneof(
  fc.record({ kind: fc.constant("fixed" as const), tokens: fc.integer({ min: 1, max: 500 }) }),
  fc.record({
    kind: fc.constant("uniform" as const),
    min: fc.integer({ min: 1, max: 50 }),
    max: fc.integer({ min: 50, max: 500 }),
  }),
  fc.record({ kind: fc.constant("lognormal" as const), mean: fc.integer({ min: 1, max: 500 }), sigma: fc.constant(1) }),
);

const generatorSpec: fc.Arbitrary<GeneratorSpec> = fc.record({
  requests: fc.integer({ min: 1, max: 40 }),
  arrivals: fc.constantFrom(...patterns),
  input: lengthSpec,
  output: lengthSpec,
  sharedPrefixRatio: fc.double({ min: 0, max: 1, noNaN: true }),
  prefixGroups: fc.integer({ min: 1, max: 3 }),
  turns: fc.integer({ min: 1, max: 4 }),
  blockTokens: fc.integer({ min: 1, max: 64 }),
});

/** Ids are chained: an id has one position and one id before it, wherever it occurs. */
function expectChained(requests: readonly TraceRequest[]): void {
  const before = new Map<number, number>();
  for (const { blockIds } of requests) {
    blockIds.forEach((id, at) => {
      const previous = at === 0 ? -1 : (blockIds[at - 1] ?? -1);
      if ((before.get(id) ?? previous) !== previous) expect.fail(`id ${id} follows ${previous} and ${before.get(id)}`);
      before.set(id, previous);
    });
  }
}

describe("the generator", () => {
  it("makes the number of requests, with positive lengths, covered and chained ids", () => {
    fc.assert(
      fc.property(generatorSpec, fc.integer(), (spec, seed) => {
        const requests = [...generateTrace(spec, seededRandom(seed))];
        expect(requests.length).toBe(spec.requests);
        expectChained(requests);
        for (const request of requests) {
          expect(request.inputTokens).toBeGreaterThan(0);
          expect(request.outputTokens).toBeGreaterThan(0);
          expect(request.blockIds.length * request.blockTokens).toBeGreaterThanOrEqual(request.inputTokens);
        }
        expect([...generateTrace(spec, seededRandom(seed))]).toEqual(requests);
      }),
    );
  });

  it("repeats the conversation at the start of each turn, the answers included", () => {
    const fixed = (tokens: number): LengthSpec => ({ kind: "fixed", tokens });
    const arrivals = { kind: "constant", perSecond: 1 } as const;
    const spec = { requests: 2, arrivals, input: fixed(10), output: fixed(6), turns: 2, delayMs: 5, blockTokens: 4 };
    const [opening, followUp] = [...generateTrace(spec, seededRandom(1))];
    expect(opening).toMatchObject({ inputTokens: 10, blockIds: [0, 1, 2, 3], session: "0" });
    expect(followUp).toMatchObject({ inputTokens: 26, session: "0", delayMs: 5 });
    expect(followUp?.blockIds.slice(0, 5)).toEqual([0, 1, 2, 3, 4]); // 16 tokens of history are 4 full blocks
  });

  it("draws lognormal lengths around their mean", () => {
    const length: LengthSpec = { kind: "lognormal", mean: 1000, sigma: 1 };
    const spec: GeneratorSpec = {
      requests: 20_000,
      arrivals: { kind: "constant", perSecond: 1 },
      input: length,
      output: length,
    };
    const requests = [...generateTrace(spec, seededRandom(1))];
    const mean = requests.reduce((sum, request) => sum + request.inputTokens, 0) / requests.length;
    expect(mean).toBeGreaterThan(950);
    expect(mean).toBeLessThan(1050);
  });
});

const tree = (ids: number[][]): TraceRequest[] =>
  ids.map((blockIds, at) => ({
    arrivalMs: at * 10,
    inputTokens: blockIds.length * 10 - 3,
    outputTokens: 5,
    blockIds,
    blockTokens: 10,
  }));

describe("prefix-tree synthesis", () => {
  // Root -> [1 2] -> [3] (two visits) and [4] (two visits); 5, 6, 7, 8 are prompts of their own.
  const requests = tree([
    [1, 2, 3, 5],
    [1, 2, 3, 6],
    [1, 2, 4, 7],
    [1, 2, 4, 8],
  ]);

  it("contracts unary paths and leaves out what was seen once", () => {
    expect(new PrefixTree(requests).nodes).toBe(4); // the root, [1 2], [3], [4]
  });

  it("keeps lengths, chains ids, and repeats itself for the same seed", () => {
    const prefixTree = new PrefixTree(requests);
    const made = [...prefixTree.synthesize({ requests: 50 }, seededRandom(2))];
    expectChained(made);
    for (const request of made) expect(request).toMatchObject({ inputTokens: 37, outputTokens: 5 });
    expect(new Set(made.map((request) => request.blockIds[2])).size).toBe(2);
    expect(new Set(made.map((request) => request.blockIds[3])).size).toBe(50);
    expect([...prefixTree.synthesize({ requests: 50 }, seededRandom(2))]).toEqual(made);
  });

  it("multiplies prefixes, prompts, trees and speed", () => {
    const options = {
      requests: 400,
      rootMultiplier: 3,
      prefixLengthMultiplier: 2,
      promptLengthMultiplier: 10,
      speedup: 2,
    };
    const made = [...new PrefixTree(requests).synthesize(options, seededRandom(2))];
    expectChained(made);
    for (const request of made) expect(request.inputTokens).toBe(2 * 30 + 70);
    expect(new Set(made.map((request) => request.blockIds[0])).size).toBe(3);
    expect(made.at(-1)?.arrivalMs).toBe(399 * 5);
    for (const request of new PrefixTree(requests).synthesize({ ...options, maxInputTokens: 25 }, seededRandom(2))) {
      expect(request.inputTokens).toBe(25);
      expect(request.blockIds.length).toBe(3);
    }
  });
});

it("rate scale divides gaps and delays", () => {
  const [first, second] = tree([[1], [1]]);
  const session = { ...(second as TraceRequest), session: "a", delayMs: 8 };
  expect([...scaleRate([first as TraceRequest, session], 2)]).toMatchObject([
    { arrivalMs: 0 },
    { arrivalMs: 5, delayMs: 4 },
  ]);
});

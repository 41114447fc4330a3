import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { TraceRequest } from "../traces/trace-request.ts";
import { engineBlockKeys } from "./block-keys.ts";

const trace = (blockIds: number[], inputTokens: number, blockTokens = 512, outputTokens = 1): TraceRequest => ({
  arrivalMs: 0,
  inputTokens,
  outputTokens,
  blockIds,
  blockTokens,
});

describe("engine block keys", () => {
  it("divide the trace's blocks, and leave out what does not fill a block", () => {
    expect(engineBlockKeys(trace([7, 9], 700), 128)).toEqual([28, 29, 30, 31, 36]); // 700 tokens: 5 full blocks
    expect(engineBlockKeys(trace([], 700), 128)).toEqual([]);
  });

  it("join them in blocks that are larger", () => {
    expect(engineBlockKeys(trace([7, 9, 4], 1536), 1024)).toEqual([9]);
  });

  it("name the answer's blocks when the trace does", () => {
    expect(engineBlockKeys(trace([1, 2, 3], 5, 4, 7), 4)).toEqual([1, 2, 3]);
    expect(engineBlockKeys(trace([1, 2], 5, 4, 7), 4)).toEqual([1]);
  });

  it("are unique within a request, and equal exactly as far as the trace's blocks are", () => {
    const sizes = fc.integer({ min: 1, max: 20 });
    fc.assert(
      fc.property(
        sizes,
        sizes,
        fc.nat(10),
        fc.nat(10),
        fc.nat(10),
        (traceTokens, blockTokens, common, restA, restB) => {
          const chain = (first: number, rest: number) => [
            ...Array.from({ length: common }, (_, at) => at),
            ...Array.from({ length: rest }, (_, at) => first + at),
          ];
          const keysOf = (ids: number[]) =>
            engineBlockKeys(trace(ids, Math.max(1, ids.length * traceTokens), traceTokens), blockTokens);
          const a = keysOf(chain(100, restA));
          const b = keysOf(chain(200, restB));
          expect(new Set(a).size).toBe(a.length);
          const same = a.findIndex((key, at) => key !== b[at]);
          const equal = same < 0 ? a.length : same;
          expect(equal).toBe(Math.min(Math.floor((common * traceTokens) / blockTokens), a.length));
          expect(a.slice(equal).some((key) => b.includes(key))).toBe(false);
        },
      ),
    );
  });
});

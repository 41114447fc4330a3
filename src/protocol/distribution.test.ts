import fc from "fast-check";
import { expect, test } from "vitest";
import { distributionOf } from "./distribution.ts";

test("of 1 to 100", () => {
  const values = Array.from({ length: 100 }, (_, i) => 100 - i);
  const found = distributionOf(values)!;
  expect(found.mean).toBe(50.5);
  expect(found.p50).toBe(50.5);
  expect(found.p99).toBeCloseTo(99.01, 10);
  expect(found.min).toBe(1);
  expect(found.max).toBe(100);
  expect(found.std).toBeCloseTo(Math.sqrt((100 ** 2 - 1) / 12), 10); // of a discrete uniform distribution
});

test("of one value, and of none", () => {
  expect(distributionOf([7])).toEqual({ mean: 7, min: 7, p50: 7, p75: 7, p90: 7, p95: 7, p99: 7, max: 7, std: 0 });
  expect(distributionOf([])).toBeUndefined();
});

test("is in order and within the values", () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: -1e6, max: 1e6, noNaN: true }), { minLength: 1 }), (values) => {
      const { min, p50, p75, p90, p95, p99, max } = distributionOf(values)!;
      const order = [min, p50, p75, p90, p95, p99, max];
      for (let i = 1; i < order.length; i++) expect(order[i]).toBeGreaterThanOrEqual(order[i - 1]!);
      expect(max === Math.max(...values) && min === Math.min(...values)).toBe(true);
    }),
  );
});

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { seededRandom } from "../../protocol/random.ts";
import { Router, type RouterMode, routerModes } from "./router.ts";

const workers = ["a", "b", "c", "d"];
const request = { model: "m", promptTokens: 10 };
const balancing = routerModes.filter((mode) => mode !== "direct");

describe("Router", () => {
  it("round-robin takes each worker in turn, per model", () => {
    const router = new Router("round-robin", seededRandom(1));
    const pick = (model: string) => router.select(workers, { ...request, model }).workerId;
    expect([pick("m"), pick("m"), pick("n"), pick("m"), pick("m"), pick("m")]).toEqual(["a", "b", "a", "c", "d", "a"]);
  });

  it("least-loaded keeps the workers within one request of each other", () => {
    const router = new Router("least-loaded", seededRandom(2));
    for (let i = 0; i < 42; i++) router.select(workers, request);
    const loads = workers.map((id) => router.book.requests(id));
    expect(Math.max(...loads) - Math.min(...loads)).toBeLessThanOrEqual(1);
  });

  it("least-loaded breaks ties at random, so that an idle fleet is not one busy worker", () => {
    const router = new Router("least-loaded", seededRandom(3));
    const seen = new Set(
      Array.from({ length: 40 }, () => {
        const { workerId, load } = router.select(workers, request);
        load.release();
        return workerId;
      }),
    );
    expect(seen).toEqual(new Set(workers));
  });

  it("power-of-two never takes the busiest of two", () => {
    const router = new Router("power-of-two", seededRandom(4));
    for (let i = 0; i < 50; i++) router.book.book("a", 1);
    for (let i = 0; i < 60; i++) {
      const { workerId, load } = router.select(["a", "b"], request);
      load.release();
      expect(workerId).toBe("b");
    }
  });

  it("random reaches everybody", () => {
    const router = new Router("random", seededRandom(5));
    expect(new Set(Array.from({ length: 60 }, () => router.select(workers, request).workerId))).toEqual(
      new Set(workers),
    );
  });

  it("takes the named worker in every mode, and refuses one that is not there", () => {
    for (const mode of routerModes) {
      const router = new Router(mode, seededRandom(6));
      expect(router.select(workers, { ...request, workerId: "c" }).workerId).toBe("c");
      expect(codeOf(() => router.select(workers, { ...request, workerId: "z" }))).toBe("worker_not_found");
    }
  });

  it("direct mode wants a name", () => {
    expect(codeOf(() => new Router("direct", seededRandom(7)).select(workers, request))).toBe("invalid_header");
  });

  it("says not_ready when nobody is left", () => {
    for (const mode of balancing) {
      const router = new Router(mode, seededRandom(8));
      expect(codeOf(() => router.select([], request))).toBe("not_ready");
      expect(codeOf(() => router.select(["a"], { ...request, exclude: new Set(["a"]) }))).toBe("not_ready");
    }
  });

  it("never picks an excluded worker, books exactly once, and comes back to zero", () => {
    fc.assert(
      fc.property(
        fc.constantFrom<RouterMode>(...balancing),
        fc.array(
          fc.record({
            count: fc.integer({ min: 1, max: 6 }),
            exclude: fc.integer({ min: -1, max: 5 }),
            release: fc.boolean(),
          }),
          { maxLength: 60 },
        ),
        fc.integer(),
        (mode, steps, seed) => {
          const router = new Router(mode, seededRandom(seed));
          const open: ReturnType<Router["select"]>[] = [];
          for (const { count, exclude, release } of steps) {
            const candidates = Array.from({ length: count }, (_, i) => `w${i}`);
            const excluded = new Set([`w${exclude}`]);
            if (candidates.every((id) => excluded.has(id))) continue;
            const selection = router.select(candidates, { ...request, exclude: excluded });
            expect(candidates).toContain(selection.workerId);
            expect(excluded.has(selection.workerId)).toBe(false);
            open.push(selection);
            if (release) {
              const first = open.shift()!;
              first.load.release();
              first.load.release();
            }
            const booked = Array.from({ length: 6 }, (_, i) => router.book.requests(`w${i}`));
            expect(booked.reduce((a, b) => a + b)).toBe(open.length);
          }
          for (const { load } of open) load.release();
          for (let i = 0; i < 6; i++) {
            expect(router.book.requests(`w${i}`)).toBe(0);
            expect(router.book.promptTokens(`w${i}`)).toBe(0);
          }
        },
      ),
    );
  });
});

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof StatorError) return error.code;
    throw error;
  }
  return "none";
}

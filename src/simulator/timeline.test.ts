import fc from "fast-check";
import { expect, it } from "vitest";
import { createSimulatedEngine } from "../mocker/timed-engine.ts";
import { fixedTiming } from "../mocker/timing/fixed.ts";
import { replay } from "./replay.ts";
import { reportOf } from "./report.ts";
import { Timeline } from "./timeline.ts";

const tally = { id: "w", role: "worker" as const, requests: 0, busyMs: 0, cachedTokens: 0, preemptions: 0, deaths: [] };

/** One worker that has given as many tokens as ms have passed. */
function watched(timesMs: readonly number[]): Timeline {
  const timeline = new Timeline();
  let outputTokens = 0;
  const observed = {
    get tallies() {
      return [{ ...tally, outputTokens, prefillTokens: 2 * outputTokens }];
    },
    loads: () => [{ running: 3, waiting: 2, waitingTokens: 0, activeBlocks: 0, cachedBlocks: 0, totalBlocks: 0 }],
  };
  for (const atMs of timesMs) {
    timeline.advance(atMs, outputTokens, observed);
    outputTokens = atMs;
  }
  timeline.end(timesMs.at(-1)!, outputTokens, observed);
  return timeline;
}

it("a short run: begin, every 100 ms what was so far, and the end, with all that happened then", () => {
  const { moments } = watched([0, 30, 99, 100, 250, 330]);
  expect(moments.map(({ atMs, outputTokens }) => [atMs, outputTokens])).toEqual([
    [0, 0],
    [100, 99], // before what happens at 100
    [200, 100],
    [330, 330], // the 30 ms after 300 are no window of their own
  ]);
  expect(watched([0, 100, 200]).moments.map(({ outputTokens }) => outputTokens)).toEqual([0, 0, 200]);
  expect(moments[1]).toMatchObject({ waiting: 2, requests: Float64Array.of(5), prefillTokens: 198, gaps: 99 });
});

it("however long the run, there are few moments, at equal distances, and no count is lost", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 1_000_000 }), { minLength: 1, maxLength: 300 }), (gaps) => {
      let atMs = 5;
      const timesMs = gaps.map((gap) => {
        atMs += gap;
        return atMs;
      });
      const { moments, widthMs } = watched(timesMs);
      expect(moments.length).toBeLessThanOrEqual(202);
      expect(moments[0]!.atMs).toBe(timesMs[0]);
      expect(moments.at(-1)!.atMs).toBe(timesMs.at(-1));
      for (let i = 1; i < moments.length - 1; i++) expect(moments[i]!.atMs).toBe(moments[0]!.atMs + i * widthMs);
      for (let i = 1; i < moments.length; i++) {
        expect(moments[i]!.outputTokens).toBeGreaterThanOrEqual(moments[i - 1]!.outputTokens);
      }
    }),
  );
});

it("changes nothing of what happens", () => {
  const workload = Array.from({ length: 60 }, (_, i) => {
    return { arrivalMs: 17 * i, inputTokens: 50 + i, outputTokens: 5, blockIds: [i % 3], blockTokens: 16 };
  });
  const run = (timeline?: Timeline) => {
    const engine = () => createSimulatedEngine({ blockTokens: 16, timing: fixedTiming(10, 1) }, 0);
    const fleet = { workers: 3 };
    const more = timeline === undefined ? {} : { timeline };
    const result = replay(workload, { fleet, engine, blockTokens: 16, routerMode: "least-loaded", seed: 1, ...more });
    return reportOf(result, { slo: {}, gpusPerWorker: 1 });
  };
  const timeline = new Timeline();
  expect(run(timeline)).toEqual(run());
  const last = timeline.moments.at(-1)!;
  expect(last.outputTokens).toBe(300);
  expect(last.gaps).toBe(240);
  expect(Math.max(...timeline.moments.map(({ requests }) => Math.max(...requests)))).toBeGreaterThan(0);
});

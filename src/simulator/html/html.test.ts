import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createSimulatedEngine } from "../../mocker/timed-engine.ts";
import { fixedTiming } from "../../mocker/timing/fixed.ts";
import { type FleetShape, replay } from "../replay.ts";
import { reportOf } from "../report.ts";
import { Timeline } from "../timeline.ts";
import { lineChart } from "./line-chart.ts";
import { replayPage } from "./page.ts";
import { linearScale, logScale } from "./scale.ts";

describe("scales", () => {
  it("marks are round and span the values", () => {
    expect(linearScale(0, 97).ticks).toEqual([0, 20, 40, 60, 80, 100]);
    expect(linearScale(0, 0.31).ticks).toEqual([0, 0.1, 0.2, 0.3, 0.4]);
    expect(linearScale(0, 0).ticks).toEqual([0, 1]);
    expect(linearScale(30, 640, "exact").ticks).toEqual([200, 400, 600]);
    expect(linearScale(30, 640, "exact").place(640)).toBe(1);
    expect(logScale(3, 450).ticks).toEqual([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]);
    expect(logScale(1, 1e6).ticks).toEqual([1, 10, 100, 1000, 1e4, 1e5, 1e6]);
  });

  it("keep the order of values and stay within the axis", () => {
    const value = fc.oneof(fc.constant(0), fc.double({ min: 1e-6, max: 1e9, noNaN: true }));
    fc.assert(
      fc.property(value, value, value, value, (a, b, c, d) => {
        const [low, high] = [Math.min(a, b), Math.max(a, b)];
        const [less, more] = [Math.min(c, d), Math.max(c, d)];
        for (const scale of [
          linearScale(low, high),
          linearScale(low, high, "exact"),
          logScale(low + 1e-3, high + 1e-3),
        ]) {
          expect(scale.place(less)).toBeGreaterThanOrEqual(0);
          expect(scale.place(more)).toBeLessThanOrEqual(1);
          expect(scale.place(less)).toBeLessThanOrEqual(scale.place(more));
          expect(scale.ticks.length).toBeLessThan(40);
        }
      }),
    );
  });
});

describe("charts", () => {
  const labels = { title: "t", xLabel: "x", yLabel: "y" };

  it("whatever the values are, no NaN gets into the drawing; none at all is said", () => {
    const anything = fc.double();
    fc.assert(
      fc.property(fc.array(fc.tuple(anything, anything), { maxLength: 20 }), fc.boolean(), (points, log) => {
        const svg = lineChart({ ...labels, series: [{ name: "s", points, color: 3 }], xScale: log ? "log" : "linear" });
        expect(svg).not.toMatch(/NaN|Infinity/);
        if (!points.some((point) => point.every(Number.isFinite))) expect(svg).toContain("no data");
      }),
    );
  });

  it("a hole in the values is a hole in the line", () => {
    const points = [0, 1, Number.NaN, 3, 4].map((y, x) => [x, y] as const);
    const [path] = /class="line c0 solid" d="(M[^"]*)"><title>/
      .exec(lineChart({ ...labels, series: [{ name: "s", points, color: 0 }] }))!
      .slice(1);
    expect(path!.match(/M/g)).toHaveLength(2);
    expect(path!.match(/L/g)).toHaveLength(2);
  });
});

describe("the page", () => {
  function page(name: string, settings: string, fleet: FleetShape = { workers: 2 }, runs = 1): string {
    const request = { inputTokens: 40, outputTokens: 4, blockIds: [], blockTokens: 16 };
    const workload = Array.from({ length: 30 }, (_, i) => ({ ...request, arrivalMs: 20 * i }));
    const timeline = new Timeline();
    const engine = () => createSimulatedEngine({ blockTokens: 16, timing: fixedTiming(10, 1) }, 0);
    const result = replay(workload, { fleet, engine, blockTokens: 16, routerMode: "round-robin", seed: 1, timeline });
    const report = reportOf(result, { slo: { ttftMs: 50 }, gpusPerWorker: 1 });
    const run = { name, settings, report, log: result.log, timeline };
    return replayPage(
      name,
      Array.from({ length: runs }, () => run),
      { ttftMs: 50 },
    );
  }

  it("has every chart, and nothing from elsewhere", () => {
    const html = page("a run", "workers 2");
    for (const title of [
      "Time to first token, by",
      "Inter-token latency",
      "cumulative",
      "found in a cache",
      "waiting",
      "in each worker",
    ]) {
      expect(html).toContain(title);
    }
    expect(html).not.toContain("no data");
    expect(html).not.toMatch(/NaN|Infinity|undefined/);
    expect(html).not.toMatch(/<script|<link|<img|@import|url\(|href=|src=|https?:/);
  });

  it("several runs in one, and more workers than there are colours", () => {
    const html = page("many", "workers 40", { workers: 40 }, 3);
    expect(html).toContain("40 workers, the 32 busiest");
    expect(html).toContain("by when the request was sent: p99");
  });

  it("names cannot break out of their place", () => {
    const hostile = fc.string({
      unit: fc.constantFrom("<", ">", '"', "'", "&", "/", "a", "-", "!", "script", "=", " ", "\u0000"),
    });
    fc.assert(
      fc.property(hostile, hostile, (name, settings) => {
        const html = page(name, settings);
        const plain = page("x", "x");
        expect(html.match(/</g)?.length).toBe(plain.match(/</g)?.length); // the empty name has its legend left out
      }),
      { numRuns: 30 },
    );
  });
});

import { distributionOf, quantile } from "../../protocol/distribution.ts";
import type { RequestLog } from "../request-log.ts";
import { outcomes } from "../request-log.ts";
import type { Moment, Timeline } from "../timeline.ts";

type Points = readonly (readonly [x: number, y: number])[];

/** Points of one run's charts. Times on the x axes are seconds from its begin. */
export interface RunCurves {
  /** Of the requests sent in each window; ms. */
  readonly ttft: { readonly p50: Points; readonly p99: Points };
  /** Of the gaps that ended in each window; ms. */
  readonly itl: { readonly mean: Points; readonly p99: Points };
  /** Part of the values that are at most x ms. */
  readonly ttftCdf: Points;
  readonly itlCdf: Points;
  /** Of the prompt tokens of each window. */
  readonly hitRate: Points;
  /** Requests that wait in workers, at the end of each window. */
  readonly queue: Points;
  /** Tokens per second of each window. */
  readonly output: Points;
  /** Requests in each worker, at the end of each window. */
  readonly workers: readonly Points[];
}

const CDF_POINTS = 200;

export function curvesOf(log: RequestLog, { moments, widthMs }: Timeline): RunCurves {
  const beganMs = moments[0]?.atMs ?? 0;
  const seconds = (ms: number): number => (ms - beganMs) / 1000;
  const windows = moments.slice(1).map((end, index) => ({ begin: moments[index]!, end }));
  const overWindows = (value: (begin: Moment, end: Moment) => number): Points =>
    windows.map(({ begin, end }) => [seconds((begin.atMs + end.atMs) / 2), value(begin, end)]);
  const atEnds = (value: (moment: Moment) => number): Points =>
    moments.map((moment) => [seconds(moment.atMs), value(moment)]);

  const ttfts = windows.map((): number[] => []);
  const all: number[] = [];
  for (let id = 0; id < log.requests.length; id++) {
    if (log.outcome[id] !== outcomes.completed) continue;
    const window = Math.min(windows.length - 1, Math.floor((log.dispatchedMs[id]! - beganMs) / widthMs));
    ttfts[window]?.push(log.ttftMs(id));
    all.push(log.ttftMs(id));
  }
  const ttft = ttfts.map((values) => distributionOf(values));
  const itl = windows.map(({ begin, end }) => distributionOf(log.gaps.subarray(begin.gaps, end.gaps)));
  const each = (values: readonly ({ readonly [name in "mean" | "p50" | "p99"]: number } | undefined)[]) => ({
    of: (name: "mean" | "p50" | "p99"): Points => {
      let window = 0;
      return overWindows(() => values[window++]?.[name] ?? Number.NaN);
    },
  });

  return {
    ttft: { p50: each(ttft).of("p50"), p99: each(ttft).of("p99") },
    itl: { mean: each(itl).of("mean"), p99: each(itl).of("p99") },
    ttftCdf: cdf(all),
    itlCdf: cdf(log.gaps),
    hitRate: overWindows((begin, end) => {
      const cached = end.cachedTokens - begin.cachedTokens;
      const computed = end.prefillTokens - begin.prefillTokens;
      return cached + computed === 0 ? Number.NaN : cached / (cached + computed);
    }),
    queue: atEnds(({ waiting }) => waiting),
    output: overWindows((begin, end) => ((end.outputTokens - begin.outputTokens) * 1000) / (end.atMs - begin.atMs)),
    workers: Array.from({ length: moments[0]?.requests.length ?? 0 }, (_, worker) =>
      atEnds(({ requests }) => requests[worker]!),
    ),
  };
}

function cdf(values: Iterable<number>): Points {
  const sorted = Float64Array.from(values).sort();
  if (sorted.length === 0) return [];
  const even = Array.from({ length: CDF_POINTS }, (_, index) => index / CDF_POINTS);
  return [...even, 0.998, 0.999, 0.9995, 0.9999, 1].map((share) => [quantile(sorted, share), share] as const);
}

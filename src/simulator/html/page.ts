import { percent, shortNumber } from "../../protocol/distribution-table.ts";
import type { Slo } from "../../protocol/slo.ts";
import type { ReplayReport } from "../report.ts";
import type { RequestLog } from "../request-log.ts";
import type { Timeline } from "../timeline.ts";
import { escapeHtml } from "./escape.ts";
import { curvesOf, type RunCurves } from "./figures.ts";
import { COLORS, type LineChart, lineChart, type Series } from "./line-chart.ts";
import { pageStyle } from "./page-style.ts";

/** One configuration and what it did. */
export interface PageRun {
  readonly name: string;
  /** What was asked for, in the words of the command line. */
  readonly settings: string;
  readonly report: ReplayReport;
  readonly log: RequestLog;
  readonly timeline: Timeline;
}

type Labels = Omit<LineChart, "series">;

interface Curve {
  readonly name: string;
  readonly of: (curves: RunCurves) => Series["points"];
}

/** Of many workers so many are drawn, besides the mean and the extremes of all. */
const DRAWN_WORKERS = 32;
const NAMED_WORKERS = COLORS;
const LISTED_WORKERS = 200;

/** A page of HTML with nothing outside of it: no script, no font, no picture from elsewhere. */
export function replayPage(title: string, runs: readonly PageRun[], slo: Slo): string {
  const curves = runs.map(({ log, timeline }) => curvesOf(log, timeline));
  const sections = [
    `<h1>${escapeHtml(title)}</h1><p>Virtual time; nothing here depends on the machine that simulated it.</p>`,
    `<h2>${runs.length === 1 ? "Configuration" : "Configurations"}</h2>${settingsTable(runs)}`,
    `<h2>Summary</h2>${summaryTable(runs)}`,
    `<h2>Charts</h2><div class="charts">${fleetCharts(runs, curves, slo).join("")}</div>`,
    `<h2>Load per worker</h2><div class="charts">${runs.map((run, index) => workerChart(run, curves[index]!, runs.length > 1)).join("")}</div>`,
    ...(runs.length === 1 ? [`<h2>Workers</h2>${workerTable(runs[0]!.report)}`] : []),
  ];
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>${escapeHtml(title)}</title><style>${pageStyle}</style></head>
<body>${sections.join("\n")}</body></html>
`;
}

function fleetCharts(runs: readonly PageRun[], curves: readonly RunCurves[], slo: Slo): string[] {
  const alone = runs.length === 1;
  const time = { xLabel: "virtual time, s" };
  const each = (points: (curves: RunCurves) => Series["points"]): Series[] =>
    curves.map((it, index) => ({ name: alone ? "" : runs[index]!.name, points: points(it), color: index }));
  /** Two lines of one run in one chart; of several runs, a chart for each. */
  const pair = (labels: Labels, first: Curve, second: Curve): string[] => {
    if (!alone) {
      return [first, second].map(({ name, of }) =>
        lineChart({ ...labels, title: `${labels.title}: ${name}`, series: each(of) }),
      );
    }
    const series: Series[] = [second, first].map(({ name, of }, index) => {
      return { name, points: of(curves[0]!), color: 1 - index, style: index === 0 ? "dashed" : "solid" };
    });
    return [lineChart({ ...labels, series })];
  };
  const objective = (ms: number | undefined, name: string) => (ms === undefined ? undefined : { y: ms, name });
  const ms = { ...time, yLabel: "ms" };
  const cumulative = { xLabel: "ms", xScale: "log" as const, yMax: 1 };
  return [
    ...pair(
      { ...ms, title: "Time to first token, by when the request was sent", mark: objective(slo.ttftMs, "objective") },
      { name: "p50", of: (it) => it.ttft.p50 },
      { name: "p99", of: (it) => it.ttft.p99 },
    ),
    ...pair(
      { ...ms, title: "Inter-token latency", mark: objective(slo.tpotMs, "objective for the mean of a request") },
      { name: "mean", of: (it) => it.itl.mean },
      { name: "p99", of: (it) => it.itl.p99 },
    ),
    lineChart({
      ...cumulative,
      title: "Time to first token, cumulative",
      yLabel: "part of requests",
      series: each((it) => it.ttftCdf),
    }),
    lineChart({
      ...cumulative,
      title: "Inter-token latency, cumulative",
      yLabel: "part of tokens",
      series: each((it) => it.itlCdf),
    }),
    lineChart({
      ...time,
      title: "Prompt tokens found in a cache",
      yLabel: "part",
      yMax: 1,
      series: each((it) => it.hitRate),
    }),
    lineChart({ ...time, title: "Requests waiting in workers", yLabel: "requests", series: each((it) => it.queue) }),
    lineChart({ ...time, title: "Output", yLabel: "tokens/s", series: each((it) => it.output) }),
  ];
}

function workerChart({ name, report }: PageRun, { workers }: RunCurves, named: boolean): string {
  const title = named ? name : "Requests in each worker";
  const labels = { title, xLabel: "virtual time, s", yLabel: "requests" };
  if (workers.length <= NAMED_WORKERS) {
    const series = workers.map((points, index) => ({ name: report.workers[index]!.worker_id, points, color: index }));
    return lineChart({ ...labels, series });
  }
  const across = (of: (values: readonly number[]) => number): Series["points"] =>
    workers[0]!.map(([x], at) => [x, of(workers.map((points) => points[at]![1]))]);
  const mean = (values: readonly number[]): number => values.reduce((sum, it) => sum + it, 0) / values.length;
  const largest = (values: readonly number[]): number => values.reduce((a, b) => Math.max(a, b), 0);
  const smallest = (values: readonly number[]): number => values.reduce((a, b) => Math.min(a, b));
  const thin = [...workers.keys()]
    .sort((a, b) => report.workers[b]!.busy_ratio - report.workers[a]!.busy_ratio)
    .slice(0, DRAWN_WORKERS)
    .map((index) => ({
      name: report.workers[index]!.worker_id,
      points: workers[index]!,
      color: 0,
      style: "thin" as const,
    }));
  return lineChart({
    ...labels,
    title: `${title}: ${workers.length} workers, the ${thin.length} busiest as thin lines`,
    series: [
      ...thin,
      { name: "most", points: across(largest), color: 7, style: "dashed" },
      { name: "mean", points: across(mean), color: 1 },
      { name: "least", points: across(smallest), color: 2, style: "dashed" },
    ],
  });
}

function settingsTable(runs: readonly PageRun[]): string {
  return table(
    [],
    runs.map(({ name, settings }) => [name, settings]),
    "left",
  );
}

function summaryTable(runs: readonly PageRun[]): string {
  const rows: [string, (report: ReplayReport) => string][] = [
    ["requests completed", (it) => `${it.completed_requests} of ${it.num_requests}`],
    [
      "rejected, failed, incomplete",
      (it) => `${it.rejected_requests}, ${it.failed_requests}, ${it.incomplete_requests}`,
    ],
    ["virtual duration, s", (it) => (it.duration_ms / 1000).toFixed(1)],
    ["requests/s", (it) => it.request_throughput_rps.toFixed(2)],
    ["output tokens/s", (it) => it.output_throughput_tok_s.toFixed(0)],
    ...(["ttft", "itl", "tpot", "e2e"] as const).flatMap((name) =>
      (["mean", "p50", "p99"] as const).map((column): [string, (report: ReplayReport) => string] => [
        `${name} ${column}, ms`,
        (it) => (it[name] === null ? "-" : shortNumber(it[name][column])),
      ]),
    ),
    ["prompt tokens found in a cache", (it) => percent(it.prefix_cache_reused_ratio)],
    ["prompt tokens computed again", (it) => String(it.recomputed_prefill_tokens)],
    ["preemptions", (it) => String(it.preemptions)],
    ["goodput, requests/s", (it) => (it.goodput_rps === undefined ? "-" : it.goodput_rps.toFixed(2))],
    ["within the objectives", (it) => (it.goodput_ratio === undefined ? "-" : percent(it.goodput_ratio))],
    ["GPU seconds per qualified request", (it) => costText(it.gpu_seconds_per_qualified_request)],
    ["GPU hours", (it) => it.gpu_hours.toFixed(2)],
  ];
  const head = ["", ...runs.map(({ name }) => name)];
  return table(
    head,
    rows.map(([name, value]) => [name, ...runs.map(({ report }) => value(report))]),
  );
}

function costText(cost: number | null | undefined): string {
  return typeof cost === "number" ? cost.toFixed(2) : "-";
}

function workerTable({ workers }: ReplayReport): string {
  const rows = workers
    .slice(0, LISTED_WORKERS)
    .map((it) => [
      it.worker_id,
      percent(it.busy_ratio),
      ...[it.requests, it.prefill_tokens, it.output_tokens, it.preemptions].map(String),
    ]);
  const more = workers.length - rows.length;
  const head = ["worker", "busy", "requests", "prefill tokens", "output tokens", "preemptions"];
  return table(head, rows) + (more > 0 ? `<p>and ${more} more</p>` : "");
}

function table(head: readonly string[], rows: readonly (readonly string[])[], align?: "left"): string {
  const cells = (tag: string, row: readonly string[]): string =>
    `<tr>${row.map((text) => `<${tag}${align === "left" ? ' class="text"' : ""}>${escapeHtml(text)}</${tag}>`).join("")}</tr>`;
  const top = head.length === 0 ? "" : `<thead>${cells("th", head)}</thead>`;
  return `<div class="scroll"><table>${top}<tbody>${rows.map((row) => cells("td", row)).join("")}</tbody></table></div>`;
}

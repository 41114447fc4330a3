import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { LiveFleet, type LiveReport, load, type OfflineReport, replay } from "./stator.js";
import { type Row, sourceOf, timed } from "./workload.js";

/*
 * `npm run bench -- mocker [--requests 300] [--workers 8] [--load 0.58] [--json]`
 *
 *   rows --> stator replay                                                    offline: virtual time
 *     +----> stator bench serve --> stator frontend --> stator worker         live: simulated engines, speed-up 1
 *
 * The same requests, dealt round-robin, at a rate at which the engines are busy for so much of the time. Exit code 1 when the
 * schedule was not kept (then the load was another one), or when a mean of TTFT or ITL is off by more than 5 %.
 */

const { values } = parseArgs({
  args: process.argv.slice(2),
  options: {
    requests: { type: "string", default: "300" },
    workers: { type: "string", default: "8" },
    load: { type: "string", default: "0.58" },
    json: { type: "boolean", default: false },
  },
});
const requests = Number(values.requests);
const workers = Number(values.workers);
const wantedLoad = Number(values.load);
const ALLOWED = 0.05;
const metrics = ["ttft", "itl", "tpot", "e2e"] as const;
const judged = ["ttft", "itl"] as const;

const folder = mkdtempSync(join(tmpdir(), "stator-bench-"));
const fleet = new LiveFleet();
let code = 1;
try {
  code = await main();
} finally {
  fleet.close();
  rmSync(folder, { recursive: true, force: true });
}
process.exit(code);

async function main(): Promise<number> {
  const { name, rows } = sourceOf(requests);
  const perSecond = rateFor(rows);
  const trace = written(timed(rows, perSecond));
  const offline = replay(trace, workers);
  const seconds = offline.duration_ms / 1000;
  say(`${requests} requests of ${name}, ${perSecond.toFixed(2)} per second over ${workers} engines: `);
  say(`busy for ${(busyOf(offline) * 100).toFixed(0)} % of ${seconds.toFixed(0)} s\n`);
  const url = await fleet.start(workers);
  const live = load(url, trace, requests, 1);
  if (values.json) process.stdout.write(`${JSON.stringify({ perSecond, live, offline }, undefined, 2)}\n`);
  else print(live, offline);
  const problems = problemsOf(live, offline);
  for (const problem of problems) process.stderr.write(`${problem}\n`);
  return problems.length === 0 ? 0 : 1;
}

/** The rate at which a replay says that the engines are as busy as wanted. */
function rateFor(rows: readonly Row[]): number {
  let [low, high] = [0.01, 100];
  for (let round = 0; round < 12; round++) {
    const middle = Math.sqrt(low * high);
    if (busyOf(replay(written(timed(rows, middle)), workers)) <= wantedLoad) low = middle;
    else high = middle;
  }
  return low;
}

function busyOf({ workers: all }: OfflineReport): number {
  return all.reduce((sum, { busy_ratio }) => sum + busy_ratio, 0) / all.length;
}

function written(rows: readonly Row[]): string {
  const path = join(folder, "workload.jsonl");
  writeFileSync(path, `${rows.map((row) => JSON.stringify(row)).join("\n")}\n`);
  return path;
}

function problemsOf(live: LiveReport, offline: OfflineReport): string[] {
  const problems: string[] = [];
  for (const count of ["completed_requests", "total_input_tokens", "total_output_tokens"] as const) {
    if (live[count] !== offline[count]) problems.push(`${count}: ${live[count]} live, ${offline[count]} offline`);
  }
  const errors = JSON.stringify(live.errors);
  if (errors !== "{}") problems.push(`failed: ${errors}`);
  if (!live.schedule_kept) {
    const p99 = live.schedule_lateness.p99.toFixed(1);
    problems.push(
      `The schedule was not kept (p99 ${p99} ms late): the machine is too busy, and the figures say nothing.`,
    );
  }
  for (const metric of judged) {
    const off = live[metric].mean / offline[metric].mean - 1;
    if (Math.abs(off) > ALLOWED) problems.push(`${metric}: the mean is off by ${(off * 100).toFixed(1)} %`);
  }
  return problems;
}

function print(live: LiveReport, offline: OfflineReport): void {
  const line = (cells: readonly string[]): void => say(`| ${cells.join(" | ")} |\n`);
  say(`\nNode ${process.versions.node}; times in ms\n\n`);
  const points = ["mean", "p50", "p99"] as const;
  line(["", ...points.flatMap((point) => [`${point} live`, "offline", "ratio"])]);
  line(["---", ...points.flatMap(() => ["---", "---", "---"])]);
  for (const metric of metrics) {
    const cells = points.flatMap((point) => {
      const [a, b] = [live[metric][point], offline[metric][point]];
      return [a.toFixed(2), b.toFixed(2), (a / b).toFixed(3)];
    });
    line([metric.toUpperCase(), ...cells]);
  }
  const percent = (part: number): string => `${(part * 100).toFixed(2)} %`;
  say(
    `\nprefix cache: ${percent(live.prefix_cache_reused_ratio)} live, ${percent(offline.prefix_cache_reused_ratio)} offline\n`,
  );
  say(`schedule kept: ${live.schedule_kept}, p99 ${live.schedule_lateness.p99.toFixed(1)} ms late\n`);
}

function say(text: string): void {
  if (!values.json) process.stdout.write(text);
}

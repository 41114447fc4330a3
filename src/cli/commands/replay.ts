import { resolve } from "node:path";
import { createSimulatedEngine } from "../../mocker/index.ts";
import {
  comparisonText,
  type PageRun,
  type ReplayReport,
  type ReplayResult,
  replayPage,
  replay as replayTrace,
  reportOf,
  reportText,
  requestLines,
  Timeline,
} from "../../simulator/index.ts";
import { scaleRate } from "../../traces/rate-scale.ts";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { readCompareFile } from "../compose/compare-file.ts";
import { type ObjectiveOptions, objectives } from "../compose/objectives.ts";
import { OutputFile } from "../compose/output-file.ts";
import {
  type Configuration,
  type ConfigurationOptions,
  configurationOf,
  ladderConfigurations,
} from "../compose/replay-configuration.ts";
import { readTrace } from "../compose/trace-file.ts";
import { ConfigError } from "../config/config.ts";

export interface ReplayCommandOptions extends ConfigurationOptions, ObjectiveOptions {
  readonly tracesFolder: string | undefined;
  /** Only the first ones of the trace. */
  readonly requests?: number;
  readonly ladder?: boolean;
  /** Paths. */
  readonly compare?: string;
  readonly html?: string;
  readonly requestsOut?: string;
  readonly json?: boolean;
}

interface Run {
  readonly configuration: Configuration;
  readonly report: ReplayReport;
}

/** What the run took on this machine; everything else in the report is the same everywhere. */
interface WallReport {
  readonly wall_time_ms: number;
  readonly wall_cpu_us_per_output_token: number | null;
}

/** `stator replay TRACE`: the trace through simulated fleets, in virtual time. */
export async function replay(trace: string, options: ReplayCommandOptions): Promise<void> {
  const { tracesFolder: folder, requests: most = Number.POSITIVE_INFINITY } = options;
  const configurations = configurationsOf(options);
  const slo = objectives(options);
  const outputs = new Outputs(trace, options);
  try {
    const workload = await readTrace({ name: trace, folder, requests: most });
    const stopwatch = new Stopwatch();
    const runs = configurations.map((configuration): Run => {
      const timeline = options.html === undefined ? undefined : new Timeline();
      const result = stopwatch.during(() => simulate(workload, configuration, timeline));
      const report = reportOf(result, { slo, gpusPerWorker: configuration.gpusPerWorker });
      outputs.add(configuration, result, report, timeline);
      return { configuration, report };
    });
    outputs.finish();
    const wall = stopwatch.report(runs.reduce((sum, { report }) => sum + report.total_output_tokens, 0));
    process.stdout.write(
      options.json === true ? jsonOf(runs, options, wall) : `${textOf(runs, options)}\n${wallText(wall)}`,
    );
  } finally {
    outputs.discard();
  }
}

/** The fleet that was asked for, or with `--ladder` or `--compare` several. */
function configurationsOf(options: ReplayCommandOptions): Configuration[] {
  const { ladder, compare } = options;
  if (ladder === true && compare !== undefined) throw new ConfigError("Give either --ladder or --compare.");
  if (ladder === true) return ladderConfigurations(options);
  if (compare === undefined) return [configurationOf("fleet", options)];
  return readCompareFile(compare, options).map(({ name, options: own }) => {
    try {
      return configurationOf(name, own);
    } catch (cause) {
      if (!(cause instanceof Error)) throw cause;
      throw new ConfigError(`--compare ${compare} (${name}): ${cause.message}`, { cause });
    }
  });
}

function simulate(
  workload: readonly TraceRequest[],
  configuration: Configuration,
  timeline: Timeline | undefined,
): ReplayResult {
  const { fleet, routerMode, engine, blockTokens, seed, arrivalSpeed, concurrency, faults } = configuration;
  return replayTrace(arrivalSpeed === 1 ? workload : [...scaleRate(workload, arrivalSpeed)], {
    fleet,
    engine: (role, worker) =>
      createSimulatedEngine({ ...engine, role: role === "worker" ? "aggregated" : role, seed: seed + worker }, 0),
    blockTokens,
    routerMode,
    seed,
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(timeline === undefined ? {} : { timeline }),
    ...(faults === undefined ? {} : { faults }),
  });
}

/** The files that were asked for. */
class Outputs {
  readonly #title: string;
  readonly #options: ReplayCommandOptions;
  readonly #page: OutputFile | undefined;
  readonly #lines: OutputFile | undefined;
  readonly #runs: PageRun[] = [];

  /** Throws when one of them cannot be written. */
  constructor(trace: string, options: ReplayCommandOptions) {
    const { html, requestsOut } = options;
    if (html !== undefined && requestsOut !== undefined && resolve(html) === resolve(requestsOut)) {
      throw new ConfigError("--html and --requests-out name the same file.");
    }
    this.#title = `stator replay ${trace}`;
    this.#options = options;
    this.#page = html === undefined ? undefined : new OutputFile(html, "--html");
    try {
      this.#lines = requestsOut === undefined ? undefined : new OutputFile(requestsOut, "--requests-out");
    } catch (error) {
      this.#page?.discard();
      throw error;
    }
  }

  add(
    { name, settings }: Configuration,
    { log }: ReplayResult,
    report: ReplayReport,
    timeline: Timeline | undefined,
  ): void {
    if (timeline !== undefined) this.#runs.push({ name, settings, report, log, timeline });
    if (this.#lines === undefined) return;
    const configuration = comparesSeveral(this.#options) ? name : undefined;
    for (const line of requestLines(log, objectives(this.#options), configuration)) this.#lines.write(line);
  }

  finish(): void {
    this.#lines?.finish();
    if (this.#page === undefined) return;
    this.#page.write(replayPage(this.#title, this.#runs, objectives(this.#options)));
    this.#page.finish();
  }

  discard(): void {
    this.#lines?.discard();
    this.#page?.discard();
  }
}

function comparesSeveral({ ladder, compare }: ReplayCommandOptions): boolean {
  return ladder === true || compare !== undefined;
}

function textOf(runs: readonly Run[], options: ReplayCommandOptions): string {
  if (!comparesSeveral(options)) return reportText(runs[0]!.report);
  return comparisonText(runs.map(({ configuration: { name }, report }) => ({ name, report })));
}

function jsonOf(runs: readonly Run[], { ladder, compare }: ReplayCommandOptions, wall: WallReport): string {
  const named = (field: string) => runs.map(({ configuration: { name }, report }) => ({ [field]: name, ...report }));
  const document =
    ladder === true ? { ladder: named("rung") } : compare === undefined ? runs[0]!.report : { compare: named("name") };
  return `${JSON.stringify({ ...document, ...wall }, undefined, 2)}\n`;
}

/** Sums up the time and the CPU time of what it is used for. */
class Stopwatch {
  #wallMs = 0;
  #cpuMicros = 0;

  during<Result>(run: () => Result): Result {
    const beganMs = performance.now();
    const cpuBefore = process.cpuUsage();
    const result = run();
    const cpu = process.cpuUsage(cpuBefore);
    this.#wallMs += performance.now() - beganMs;
    this.#cpuMicros += cpu.user + cpu.system;
    return result;
  }

  report(outputTokens: number): WallReport {
    const perToken = outputTokens === 0 ? null : this.#cpuMicros / outputTokens;
    return { wall_time_ms: this.#wallMs, wall_cpu_us_per_output_token: perToken };
  }
}

function wallText({ wall_time_ms, wall_cpu_us_per_output_token: cpu }: WallReport): string {
  const perToken = cpu === null ? "" : `, ${cpu.toFixed(2)} CPU µs per output token`;
  return `simulated in ${(wall_time_ms / 1000).toFixed(1)} s${perToken}\n`;
}

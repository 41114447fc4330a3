import { createSimulatedEngine, type EngineSettings, type FaultScript, type Flavour } from "../../mocker/index.ts";
import type { RouterMode } from "../../router/select/router.ts";
import {
  type FleetShape,
  ladderOf,
  ladderText,
  type ReplayReport,
  type Rung,
  replay as replayTrace,
  reportOf,
  reportText,
  type Slo,
} from "../../simulator/index.ts";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { readFaultScript } from "../compose/fault-file.ts";
import { hardwareSettings } from "../compose/simulated-hardware.ts";
import { readTrace } from "../compose/trace-file.ts";
import { ConfigError } from "../config/config.ts";

export interface ReplayCommandOptions {
  readonly tracesFolder: string | undefined;
  readonly workers?: number;
  readonly prefillWorkers?: number;
  readonly decodeWorkers?: number;
  /** Of each link that KV is moved over, in GB/s. */
  readonly kvBandwidth: number;
  readonly routerMode: RouterMode;
  readonly seed: number;
  readonly arrivalSpeed: number;
  readonly concurrency?: number;
  readonly requests?: number;
  readonly flavour: Flavour;
  readonly timing: string;
  readonly modelConfig?: string;
  readonly hardware: string;
  readonly tensorParallel: number;
  readonly blockSize: number;
  readonly blocks?: number;
  readonly sloTtftMs?: number;
  readonly sloTpotMs?: number;
  readonly sloE2eMs?: number;
  readonly ladder?: boolean;
  /** Path of a fault script. */
  readonly faults?: string;
  readonly json?: boolean;
}

const DEFAULT_KV_BYTES_PER_TOKEN = 131_072;
const MAX_WORKERS = 10_000;

/** What the run took on this machine; everything else in the report is the same everywhere. */
interface WallReport {
  readonly wall_time_ms: number;
  readonly wall_cpu_us_per_output_token: number | null;
}

/** `stator replay TRACE`: the trace through a simulated fleet, in virtual time. */
export async function replay(trace: string, options: ReplayCommandOptions): Promise<void> {
  const { tracesFolder: folder, arrivalSpeed: speed, requests: most = Number.POSITIVE_INFINITY } = options;
  const settings = hardwareSettings(options);
  const kvBytesPerToken = settings.kvBytesPerToken ?? DEFAULT_KV_BYTES_PER_TOKEN;
  const rungs = rungsOf(options, kvBytesPerToken);
  const faults = faultsOf(options);
  const requests = await readTrace({ name: trace, folder, speed, requests: most });
  const { reports, wall } = measured(() =>
    rungs.map((rung) => simulate(requests, rung, { settings, faults }, options)),
  );
  const [report] = reports;
  if (options.json === true) {
    const document = options.ladder === true ? { ladder: namedAfter(rungs, reports), ...wall } : { ...report, ...wall };
    process.stdout.write(`${JSON.stringify(document, undefined, 2)}\n`);
    return;
  }
  const text = options.ladder === true ? ladderText(namedAfter(rungs, reports)) : reportText(report!);
  process.stdout.write(`${text}\n${wallText(wall)}`);
}

function simulate(
  requests: readonly TraceRequest[],
  { fleet, routerMode }: Rung,
  { settings, faults }: { readonly settings: EngineSettings; readonly faults: FaultScript | undefined },
  options: ReplayCommandOptions,
): ReplayReport {
  const { seed, concurrency, blockSize: blockTokens, tensorParallel: gpusPerWorker } = options;
  const result = replayTrace(requests, {
    fleet,
    engine: (role, worker) =>
      createSimulatedEngine({ ...settings, role: role === "worker" ? "aggregated" : role, seed: seed + worker }, 0),
    blockTokens,
    routerMode,
    seed,
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(faults === undefined ? {} : { faults }),
  });
  return reportOf(result, { slo: objectives(options), gpusPerWorker });
}

function faultsOf({ faults, ladder }: ReplayCommandOptions): FaultScript | undefined {
  if (faults === undefined) return undefined;
  if (ladder === true) {
    throw new ConfigError("--faults and --ladder do not go together: the fleets of a ladder have different workers.");
  }
  return readFaultScript(faults, "--faults");
}

/** The fleet that was asked for, or with `--ladder` several to compare. */
function rungsOf(options: ReplayCommandOptions, kvBytesPerToken: number): Rung[] {
  const { prefillWorkers, decodeWorkers, workers, routerMode, flavour, kvBandwidth, ladder } = options;
  if ((prefillWorkers === undefined) !== (decodeWorkers === undefined)) {
    throw new ConfigError("--prefill-workers and --decode-workers belong together.");
  }
  if (prefillWorkers !== undefined && workers !== undefined) {
    throw new ConfigError("Give either --workers, or --prefill-workers and --decode-workers.");
  }
  for (const count of [workers, prefillWorkers, decodeWorkers]) {
    if (count !== undefined && count > MAX_WORKERS) throw new ConfigError(`At most ${MAX_WORKERS} workers of a kind.`);
  }
  const apart = (prefill: number, decode: number) => ({
    prefillWorkers: prefill,
    decodeWorkers: decode,
    kvTransfer: {
      order: flavour === "vllm" ? ("source" as const) : ("target" as const),
      linkBytesPerSecond: kvBandwidth * 1e9,
      kvBytesPerToken,
    },
  });
  const split =
    prefillWorkers !== undefined && decodeWorkers !== undefined ? apart(prefillWorkers, decodeWorkers) : undefined;
  if (ladder === true) {
    if (split !== undefined) return ladderOf(split);
    if (workers === undefined || workers < 2) throw new ConfigError("--ladder needs --workers of at least 2.");
    return ladderOf(apart(Math.ceil(workers / 2), Math.floor(workers / 2)));
  }
  const fleet: FleetShape = split ?? { workers: workers ?? 1 };
  return [{ name: "fleet", fleet, routerMode }];
}

function namedAfter(rungs: readonly Rung[], reports: readonly ReplayReport[]) {
  return reports.map((report, index) => ({ rung: rungs[index]!.name, ...report }));
}

function measured(run: () => ReplayReport[]): { readonly reports: ReplayReport[]; readonly wall: WallReport } {
  const beganMs = performance.now();
  const cpuBefore = process.cpuUsage();
  const reports = run();
  const cpu = process.cpuUsage(cpuBefore);
  const tokens = reports.reduce((sum, report) => sum + report.total_output_tokens, 0);
  return {
    reports,
    wall: {
      wall_time_ms: performance.now() - beganMs,
      wall_cpu_us_per_output_token: tokens === 0 ? null : (cpu.user + cpu.system) / tokens,
    },
  };
}

function wallText({ wall_time_ms, wall_cpu_us_per_output_token: cpu }: WallReport): string {
  const perToken = cpu === null ? "" : `, ${cpu.toFixed(2)} CPU µs per output token`;
  return `simulated in ${(wall_time_ms / 1000).toFixed(1)} s${perToken}\n`;
}

function objectives({ sloTtftMs, sloTpotMs, sloE2eMs }: ReplayCommandOptions): Slo {
  return {
    ...(sloTtftMs === undefined ? {} : { ttftMs: sloTtftMs }),
    ...(sloTpotMs === undefined ? {} : { tpotMs: sloTpotMs }),
    ...(sloE2eMs === undefined ? {} : { e2eMs: sloE2eMs }),
  };
}

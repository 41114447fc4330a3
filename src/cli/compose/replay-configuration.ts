import type { EngineSettings, FaultScript, Flavour } from "../../mocker/index.ts";
import type { RouterMode } from "../../router/select/router.ts";
import { type FleetShape, ladderOf } from "../../simulator/index.ts";
import { ConfigError } from "../config/config.ts";
import { readFaultScript } from "./fault-file.ts";
import { hardwareSettings } from "./simulated-hardware.ts";

/** The options of `stator replay` that say what serves, and under which load; all of them may differ in a comparison. */
export interface ConfigurationOptions {
  readonly workers?: number;
  readonly prefillWorkers?: number;
  readonly decodeWorkers?: number;
  /** Of each link that KV is moved over, in GB/s. */
  readonly kvBandwidth: number;
  readonly routerMode: RouterMode;
  readonly seed: number;
  readonly arrivalSpeed: number;
  readonly concurrency?: number;
  readonly flavour: Flavour;
  readonly timing: string;
  readonly modelConfig?: string;
  readonly hardware: string;
  readonly tensorParallel: number;
  readonly blockSize: number;
  readonly blocks?: number;
  /** Path of a fault script. */
  readonly faults?: string;
}

/** One way to serve a workload, ready to run. */
export interface Configuration {
  readonly name: string;
  readonly fleet: FleetShape;
  readonly routerMode: RouterMode;
  readonly engine: EngineSettings;
  readonly blockTokens: number;
  readonly gpusPerWorker: number;
  readonly seed: number;
  readonly arrivalSpeed: number;
  readonly concurrency?: number;
  readonly faults?: FaultScript;
  /** In a line for a person. */
  readonly settings: string;
}

const DEFAULT_KV_BYTES_PER_TOKEN = 131_072;
const MAX_WORKERS = 10_000;
/** Factors beyond these leave no time, or no end of it, that a number can tell. */
const FACTORS = { least: 1e-6, most: 1e9 };

export function configurationOf(name: string, options: ConfigurationOptions): Configuration {
  const engine = hardwareSettings(options);
  const fleet = fleetOf(options, engine);
  return made(name, fleet, options.routerMode, options, engine);
}

/** Several fleets of as many workers as the options say, from the simplest one upwards. */
export function ladderConfigurations(options: ConfigurationOptions): Configuration[] {
  if (options.faults !== undefined) {
    throw new ConfigError("--faults and --ladder do not go together: the fleets of a ladder have different workers.");
  }
  const engine = hardwareSettings(options);
  const asked = fleetOf(options, engine);
  if ("workers" in asked && asked.workers < 2) throw new ConfigError("--ladder needs --workers of at least 2.");
  const split =
    "workers" in asked
      ? splitFleet(Math.ceil(asked.workers / 2), Math.floor(asked.workers / 2), options, engine)
      : asked;
  return ladderOf(split).map(({ name, fleet, routerMode }) => made(name, fleet, routerMode, options, engine));
}

function made(
  name: string,
  fleet: FleetShape,
  routerMode: RouterMode,
  options: ConfigurationOptions,
  engine: EngineSettings,
): Configuration {
  const { blockSize: blockTokens, tensorParallel: gpusPerWorker, seed, arrivalSpeed, concurrency, faults } = options;
  checkFactor("--arrival-speed", arrivalSpeed);
  checkFactor("--kv-bandwidth", options.kvBandwidth);
  return {
    name,
    fleet,
    routerMode,
    engine,
    blockTokens,
    gpusPerWorker,
    seed,
    arrivalSpeed,
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(faults === undefined ? {} : { faults: readFaultScript(faults, "--faults") }),
    settings: settingsText(fleet, routerMode, options),
  };
}

function checkFactor(option: string, value: number): void {
  const { least, most } = FACTORS;
  if (!(value >= least && value <= most)) throw new ConfigError(`${option} ${value} is not from ${least} to ${most}.`);
}

function fleetOf(options: ConfigurationOptions, engine: EngineSettings): FleetShape {
  const { prefillWorkers, decodeWorkers, workers } = options;
  if ((prefillWorkers === undefined) !== (decodeWorkers === undefined)) {
    throw new ConfigError("--prefill-workers and --decode-workers belong together.");
  }
  if (prefillWorkers !== undefined && workers !== undefined) {
    throw new ConfigError("Give either --workers, or --prefill-workers and --decode-workers.");
  }
  for (const count of [workers, prefillWorkers, decodeWorkers]) {
    if (count !== undefined && count > MAX_WORKERS) throw new ConfigError(`At most ${MAX_WORKERS} workers of a kind.`);
  }
  if (prefillWorkers === undefined || decodeWorkers === undefined) return { workers: workers ?? 1 };
  return splitFleet(prefillWorkers, decodeWorkers, options, engine);
}

function splitFleet(
  prefillWorkers: number,
  decodeWorkers: number,
  { flavour, kvBandwidth }: ConfigurationOptions,
  { kvBytesPerToken = DEFAULT_KV_BYTES_PER_TOKEN }: EngineSettings,
) {
  const order = flavour === "vllm" ? ("source" as const) : ("target" as const);
  return {
    prefillWorkers,
    decodeWorkers,
    kvTransfer: { order, linkBytesPerSecond: kvBandwidth * 1e9, kvBytesPerToken },
  };
}

function settingsText(fleet: FleetShape, routerMode: RouterMode, options: ConfigurationOptions): string {
  const { flavour, timing, hardware, tensorParallel, modelConfig, blockSize, blocks, seed } = options;
  const { concurrency, arrivalSpeed, kvBandwidth, faults } = options;
  const parts =
    "workers" in fleet
      ? [`workers ${fleet.workers}`]
      : [
          `prefill-workers ${fleet.prefillWorkers}`,
          `decode-workers ${fleet.decodeWorkers}`,
          `kv-bandwidth ${kvBandwidth}`,
        ];
  parts.push(`router-mode ${routerMode}`, `flavour ${flavour}`, `timing ${timing}`);
  if (timing === "roofline") {
    parts.push(`model-config ${modelConfig}`, `hardware ${hardware}`, `tensor-parallel ${tensorParallel}`);
  }
  parts.push(`block-size ${blockSize}`, ...(blocks === undefined ? [] : [`blocks ${blocks}`]), `seed ${seed}`);
  parts.push(concurrency === undefined ? `arrival-speed ${arrivalSpeed}` : `concurrency ${concurrency}`);
  if (faults !== undefined) parts.push(`faults ${faults}`);
  return parts.join(", ");
}

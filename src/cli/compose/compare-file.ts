import { dirname, resolve } from "node:path";
import { z } from "zod";
import { closest } from "../../protocol/closest.ts";
import { routerModes } from "../../router/select/router.ts";
import { ConfigError } from "../config/config.ts";
import type { ConfigurationOptions } from "./replay-configuration.ts";
import { isTimingModel } from "./simulated-hardware.ts";
import { readYamlFile } from "./yaml-file.ts";

const MAX_CONFIGURATIONS = 50;

const count = z.int().min(1);
const positive = z.number().positive();
/** The options of `stator replay`, in camelCase. Each is optional: the command line says what is not said here. */
const options = z
  .strictObject({
    workers: count,
    prefillWorkers: count,
    decodeWorkers: count,
    kvBandwidth: positive,
    routerMode: z.enum(routerModes).exclude(["direct"]),
    seed: z.int().min(0),
    arrivalSpeed: positive,
    concurrency: count,
    flavour: z.enum(["vllm", "sglang"]),
    timing: z.string(),
    modelConfig: z.string(),
    hardware: z.string(),
    tensorParallel: count,
    blockSize: count,
    blocks: count,
    faults: z.string(),
  })
  .partial();
const names = Object.keys(options.shape);

export interface NamedOptions {
  readonly name: string;
  readonly options: ConfigurationOptions;
}

/**
 * The configurations of a `--compare` file, each on top of the command line's. Paths in it are relative to it. Who names
 * workers does not get the workers of the command line.
 */
export function readCompareFile(path: string, base: ConfigurationOptions): NamedOptions[] {
  const entries = readList(path);
  const seen = new Set<string>();
  return entries.map((entry, index) => {
    const place = `--compare ${path}: [${index}]`;
    if (typeof entry !== "object" || entry === null || Array.isArray(entry)) {
      throw new ConfigError(`${place}: write a map with a name and options.`);
    }
    const { name, ...rest } = entry as Record<string, unknown>;
    if (typeof name !== "string" || name === "" || name.length > 60) {
      throw new ConfigError(`${place}.name: a text of 1 to 60 characters is needed.`);
    }
    if (seen.has(name)) throw new ConfigError(`${place}.name: ${JSON.stringify(name)} stands there twice.`);
    seen.add(name);
    return { name, options: merged(base, checked(rest, `${place} (${name})`), dirname(path)) };
  });
}

function readList(path: string): unknown[] {
  const document = readYamlFile(path, "--compare");
  if (!Array.isArray(document) || document.length === 0 || document.length > MAX_CONFIGURATIONS) {
    throw new ConfigError(
      `--compare ${path}: write a list of 1 to ${MAX_CONFIGURATIONS} configurations, each with a name.`,
    );
  }
  return document;
}

function checked(given: Record<string, unknown>, place: string): z.infer<typeof options> {
  for (const key of Object.keys(given)) {
    if (names.includes(key)) continue;
    const meant = closest(key, names);
    const hint = meant === undefined ? `There are ${names.join(", ")}.` : `Did you mean ${meant}?`;
    throw new ConfigError(`${place}: there is no option ${JSON.stringify(key)}. ${hint}`);
  }
  const parsed = options.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new ConfigError(`${place}.${issue?.path.join(".")}: ${issue?.message}`);
}

function merged(base: ConfigurationOptions, given: z.infer<typeof options>, folder: string): ConfigurationOptions {
  const { workers, prefillWorkers, decodeWorkers, ...rest } = base;
  const own = given.workers ?? given.prefillWorkers ?? given.decodeWorkers;
  const fleet = own === undefined ? { workers, prefillWorkers, decodeWorkers } : {};
  const paths = {
    ...(given.faults === undefined ? {} : { faults: resolve(folder, given.faults) }),
    ...(given.modelConfig === undefined ? {} : { modelConfig: resolve(folder, given.modelConfig) }),
    ...(given.timing === undefined || isTimingModel(given.timing) ? {} : { timing: resolve(folder, given.timing) }),
  };
  return { ...rest, ...fleet, ...given, ...paths } as ConfigurationOptions;
}

import { readFileSync } from "node:fs";
import { z } from "zod";
import {
  type EngineSettings,
  type Flavour,
  gpuNamed,
  kvBytesPerToken,
  kvCapacityTokens,
  type ModelShape,
  modelShapeFromConfig,
  polynomialTiming,
  rooflineTiming,
  tableTiming,
} from "../../mocker/index.ts";
import { ConfigError } from "../config/config.ts";

export interface HardwareChoice {
  readonly flavour: Flavour;
  /** `polynomial`, `roofline`, or the path of a JSON file with a timing table. */
  readonly timing: string;
  readonly blockSize: number;
  readonly blocks?: number;
  readonly modelConfig?: string;
  readonly hardware: string;
  readonly tensorParallel: number;
}

const numbers = z.array(z.number()).min(1);
/** See `TimingTable`. */
const timingTable = z.strictObject({
  prefillTokens: numbers,
  prefillMs: numbers,
  decodeActiveTokens: numbers,
  decodeContextTokens: numbers,
  decodeMs: z.array(numbers),
});

/** Otherwise `timing` is the path of a table. */
export function isTimingModel(timing: string): boolean {
  return timing === "polynomial" || timing === "roofline";
}

/** What a simulated engine runs on: how long its passes take, and how many blocks it has. */
export function hardwareSettings(choice: HardwareChoice): EngineSettings {
  const { flavour, timing, blockSize: blockTokens, blocks } = choice;
  const common = { flavour, blockTokens, ...(blocks === undefined ? {} : { blocks }) };
  if (timing === "polynomial") return { ...common, timing: polynomialTiming };
  if (timing !== "roofline") return { ...common, timing: tableTiming(readTable(timing)) };
  const { modelConfig, hardware, tensorParallel } = choice;
  if (modelConfig === undefined) {
    throw new ConfigError("--timing roofline needs --model-config, a model's config.json of Hugging Face.");
  }
  const model = modelShapeFromConfig(readJson(modelConfig, "--model-config"));
  const settings = { ...rooflineSettings({ flavour, blockTokens, model, hardware, tensorParallel }), ...common };
  if (settings.blocks < 1) {
    throw new ConfigError(`The model does not fit on ${tensorParallel} x ${hardware}; raise --tensor-parallel.`);
  }
  return settings;
}

/** Times and pool of an engine on GPUs of one machine; no blocks when the weights alone do not fit. */
export function rooflineSettings(engine: {
  readonly flavour: Flavour;
  readonly blockTokens: number;
  readonly model: ModelShape;
  readonly hardware: string;
  readonly tensorParallel: number;
}) {
  const { flavour, blockTokens, model, hardware, tensorParallel } = engine;
  const gpu = gpuNamed(hardware);
  const memoryFraction = flavour === "vllm" ? 0.9 : 0.88;
  return {
    blocks: Math.floor(kvCapacityTokens({ model, gpu, tensorParallel, memoryFraction }) / blockTokens),
    kvBytesPerToken: kvBytesPerToken(model, tensorParallel) * tensorParallel,
    timing: rooflineTiming({ model, gpu, tensorParallel }),
  };
}

function readTable(path: string): z.infer<typeof timingTable> {
  const table = timingTable.safeParse(readJson(path, "--timing"));
  if (table.success) return table.data;
  const [issue] = table.error.issues;
  throw new ConfigError(`--timing ${path}: ${issue?.path.join(".")}: ${issue?.message}`);
}

function readJson(path: string, option: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`${option} ${path}: ${reason}`, { cause });
  }
}

import { StatorError } from "../protocol/errors.ts";
import type { TierConfig } from "./cache-tiers.ts";
import type { TimingModel } from "./timing/timing.ts";

export type Flavour = "vllm" | "sglang";

export interface EngineConfig {
  /** Whose scheduler to follow. */
  readonly flavour: Flavour;
  /** Tokens of a KV block (SGLang: a page). */
  readonly blockTokens: number;
  /** Blocks of the pool; Infinity never evicts, never preempts. */
  readonly blocks: number;
  readonly maxSequences: number;
  /** Tokens of one pass (vLLM), of one prefill batch (SGLang: max_prefill_tokens). */
  readonly maxBatchedTokens: number;
  /** Longest prompt. */
  readonly maxModelTokens: number;
  readonly prefixCaching: boolean;
  /** Prompts may be prefilled over several passes. */
  readonly chunkedPrefill: boolean;
  /** Requests that may wait; more are rejected. */
  readonly maxWaiting: number;
  readonly timing: TimingModel;
  /** `prefill`: one token per request, and the time of decoding is not spent. `decode` and `aggregated`: all tokens. */
  readonly role: "aggregated" | "prefill" | "decode";
  /** From the start of the engine to its first pass. */
  readonly startupMs: number;
  /** Whether the step results carry KV events. */
  readonly kvEvents: boolean;
  /** Which running request loses its blocks when they run out: the newest or the oldest. vLLM only. */
  readonly preemption: "lifo" | "fifo";
  /** Speculative decoding: the chance that draft token 1, 2, ... is accepted, given that those before it were. Default none. */
  readonly acceptRates: readonly number[];
  /** Seed of the accepted draft tokens. */
  readonly seed: number;
  /** Slower caches below the pool, fastest first. Default none. */
  readonly tiers: readonly TierConfig[];
  /** What a transfer or a tier moves per token; over all GPUs of the engine. */
  readonly kvBytesPerToken: number;
  readonly sglang: SglangConfig;
}

export interface SglangConfig {
  readonly policy: "fifo" | "longest-prefix";
  /** Prompt tokens of one request in one pass; a multiple of the page. */
  readonly chunkedPrefillTokens: number;
  /** No request is expected to give more than this, when memory is planned. */
  readonly clipMaxNewTokens: number;
  readonly conservativeness: number;
}

export type EngineSettings = Partial<Omit<EngineConfig, "sglang" | "timing">> & {
  readonly timing: TimingModel;
  readonly sglang?: Partial<SglangConfig>;
};

/**
 * The defaults of the reference's simulated engines, per flavour, and a check of what can be wrong. One differs: the
 * reference gives SGLang pages of one token, which costs thirty times the CPU and changes little. SGLang divides its
 * chunk among data-parallel ranks, and plans memory more boldly, because their answers even out.
 */
export function engineConfig(settings: EngineSettings, ranks = 1): EngineConfig {
  const flavour = settings.flavour ?? "vllm";
  const blockTokens = settings.blockTokens ?? 64;
  const { sglang, ...given } = settings;
  const config: EngineConfig = {
    blockTokens,
    blocks: 16_384,
    maxSequences: 256,
    maxBatchedTokens: flavour === "vllm" ? 8192 : 16_384,
    maxModelTokens: Number.POSITIVE_INFINITY,
    prefixCaching: true,
    chunkedPrefill: true,
    maxWaiting: 100_000,
    role: "aggregated",
    startupMs: 0,
    kvEvents: false,
    preemption: "lifo",
    acceptRates: [],
    seed: 42,
    tiers: [],
    kvBytesPerToken: 131_072,
    ...given,
    flavour,
    sglang: {
      policy: "fifo",
      chunkedPrefillTokens: Math.max(1, Math.floor(8192 / ranks / blockTokens)) * blockTokens,
      clipMaxNewTokens: 4096,
      conservativeness: ranks > 1 ? 0.3 : 1,
      ...sglang,
    },
  };
  for (const key of ["blockTokens", "maxSequences", "maxBatchedTokens", "maxWaiting"] as const) {
    if (!Number.isSafeInteger(config[key]) || config[key] < 1) refuse(key, "must be a whole number of at least 1");
  }
  if (config.blocks !== Number.POSITIVE_INFINITY && !(Number.isSafeInteger(config.blocks) && config.blocks >= 1)) {
    refuse("blocks", "must be a whole number of at least 1, or Infinity");
  }
  if (!(config.startupMs >= 0)) refuse("startupMs", "must be at least 0");
  if (!(config.kvBytesPerToken > 0)) refuse("kvBytesPerToken", "must be positive");
  if (config.tiers.some(({ blocks, bytesPerSecond }) => !(blocks >= 1 && bytesPerSecond > 0))) {
    refuse("tiers", "must have blocks and a bandwidth");
  }
  if (config.acceptRates.some((rate) => !(rate >= 0 && rate <= 1))) refuse("acceptRates", "must lie between 0 and 1");
  if (!(config.sglang.conservativeness > 0)) refuse("sglang.conservativeness", "must be positive");
  const chunk = config.sglang.chunkedPrefillTokens;
  if (flavour === "sglang" && !(chunk >= blockTokens && chunk % blockTokens === 0)) {
    refuse("sglang.chunkedPrefillTokens", "must be a multiple of blockTokens");
  }
  return config;
}

function refuse(key: string, problem: string): never {
  throw new StatorError("invalid_value", `Simulated engine: ${key} ${problem}`, { param: key });
}

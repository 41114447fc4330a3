import { randomInt } from "node:crypto";
import { access } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  ggufNumber,
  ggufString,
  parameterCount,
  readGguf,
  tokenTableFromGguf,
  weightsDigest,
} from "../../model-files/index.ts";
import type { TokenizerSource } from "../../protocol/index.ts";
import { msPerToken, prefillChunk } from "./batch-order.ts";
import type { BlockListener } from "./block-account.ts";
import { LlamaEngine } from "./engine.ts";
import { loadModel } from "./load-model.ts";
import { modelCard } from "./model-card.ts";

export interface LlamaEngineOptions {
  /** A GGUF file. */
  readonly modelPath: string;
  /** The served name. */
  readonly name: string;
  readonly aliases?: readonly string[];
  /** Requests that run at once. Default 4. */
  readonly sequences?: number;
  /** Tokens of prompt and output of one request. Default and upper bound: what the model was trained on, at most 4096 by default. */
  readonly contextLength?: number;
  /** Default 1. More threads than free cores make llama.cpp slower by orders of magnitude. */
  readonly threads?: number;
  /** Tokens per llama.cpp batch. Default 512. */
  readonly batchSize?: number;
  /**
   * `false` = exact: greedy output does not depend on what else runs, nor on the cache, for q8_0 weights, and F32
   * weights with F32 KV. Absent = llama.cpp's choice, which is faster.
   */
  readonly flashAttention?: boolean;
  /** Default f16. */
  readonly kvType?: "f16" | "f32";
  /** Tokens per KV block. Default 16. */
  readonly blockSize?: number;
  /** A tokenizer.json. Default: the one beside the model file, else the frontend asks the engine. */
  readonly tokenizerPath?: string;
  /** Default false: CPU only. */
  readonly gpu?: "auto" | false;
  /** Seeds for requests without one: unsigned 32 bits. Default: random. */
  readonly randomSeed?: () => number;
  /** Remembers the digests of weights files between starts. */
  readonly digestCacheFile?: string;
  /** `health("liveness")` says unhealthy when no native step has ended for so long. Default 30,000. */
  readonly stallTimeoutMs?: number;
  /** Told when a block enters or leaves the KV cache. */
  readonly blockListener?: BlockListener;
  /** llama.cpp's warnings and errors. */
  readonly onLog?: (level: string, message: string) => void;
}

/**
 * An embedded llama.cpp in this process. Meant for a worker process of its own: a native crash takes the process along,
 * and a native hang cannot be ended from inside.
 *
 * Throws `not_ready` when node-llama-cpp is missing, `model_unavailable` when the model cannot be loaded.
 */
export async function createLlamaEngine(options: LlamaEngineOptions, signal: AbortSignal): Promise<LlamaEngine> {
  const header = await readGguf(options.modelPath);
  const table = tokenTableFromGguf(header);
  const architecture = ggufString(header, "general.architecture") ?? "";
  const trained = ggufNumber(header, `${architecture}.context_length`) ?? 4096;
  const contextLength = Math.min(options.contextLength ?? 4096, trained);
  const sequences = options.sequences ?? 4;
  const batchSize = options.batchSize ?? 512;
  const threads = options.threads ?? 1;
  const gpu = options.gpu ?? false;
  const loading = loadModel(
    {
      modelPath: options.modelPath,
      sequences,
      contextLength,
      batchSize,
      threads,
      flashAttention: options.flashAttention,
      kvType: options.kvType ?? "f16",
      gpu,
      onLog: options.onLog,
    },
    signal,
  );
  const identifying = Promise.all([
    weightsDigest(options.modelPath, {
      signal,
      ...(options.digestCacheFile === undefined ? {} : { cacheFile: options.digestCacheFile }),
    }),
    tokenizerSource(options),
  ]);
  const [loaded, identified] = await Promise.allSettled([loading, identifying]);
  if (loaded.status === "rejected") throw loaded.reason;
  const native = loaded.value;
  if (identified.status === "rejected") {
    await native.llama.dispose();
    throw identified.reason;
  }
  const [revision, tokenizer] = identified.value;
  const blockSize = options.blockSize ?? 16;
  const card = modelCard(header, {
    name: options.name,
    aliases: options.aliases ?? [],
    revision,
    tokenizer,
    table,
    contextLength,
    blockSize,
    embeddingLength: native.model.embeddingVectorSize,
    kvType: options.kvType ?? "f16",
    flashAttention: native.context.flashAttention,
  });
  const exact = options.flashAttention === false;
  return new LlamaEngine({
    native,
    table,
    descriptor: {
      kind: "llama",
      version: `node-llama-cpp ${await native.module.getModuleVersion()}, llama.cpp ${native.llama.llamaCppRelease.release}`,
      card,
      capacity: { maxRunning: sequences, totalBlocks: sequences * Math.floor(contextLength / blockSize) },
    },
    chunk: exact ? blockSize : prefillChunk({ parameters: parameterCount(header), batchSize, usesGpu: gpu !== false }),
    exact,
    batchSize,
    msPerToken: msPerToken(parameterCount(header)),
    threads,
    randomSeed: options.randomSeed ?? (() => randomInt(0xffffffff)),
    stallTimeoutMs: options.stallTimeoutMs ?? 30_000,
    blockListener: options.blockListener,
  });
}

async function tokenizerSource(options: LlamaEngineOptions): Promise<TokenizerSource> {
  if (options.tokenizerPath !== undefined) return { kind: "huggingface", path: options.tokenizerPath };
  const beside = join(dirname(options.modelPath), "tokenizer.json");
  return await access(beside).then(
    () => ({ kind: "huggingface", path: beside }) as const,
    () => ({ kind: "engine" }) as const,
  );
}

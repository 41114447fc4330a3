import type { Llama, LlamaContext, LlamaModel } from "node-llama-cpp";
import { StatorError } from "../../protocol/index.ts";
import { BatchOrder } from "./batch-order.ts";
import { guardSampling, importNative, type Native, type NativeModule } from "./native.ts";

const maxStarts = 3;

export interface LoadOptions {
  readonly modelPath: string;
  readonly sequences: number;
  readonly contextLength: number;
  readonly batchSize: number;
  readonly threads: number;
  readonly flashAttention: boolean | undefined;
  readonly kvType: "f16" | "f32";
  readonly gpu: "auto" | false;
  readonly onLog: ((level: string, message: string) => void) | undefined;
}

/**
 * Loads llama.cpp, the model and one context with `sequences` sequences of `contextLength` tokens. Throws `not_ready`
 * or `model_unavailable`; nothing stays allocated then.
 */
export async function loadModel(options: LoadOptions, signal: AbortSignal): Promise<Native> {
  const module = await importNative();
  signal.throwIfAborted();
  let llama: Llama | undefined;
  try {
    llama = await startLlama(module, options);
    signal.throwIfAborted();
    const model = await load(llama, options, signal);
    const order = new BatchOrder();
    const context = await createContext(model, order, options, signal);
    guardSampling(context);
    signal.throwIfAborted();
    return { module, llama, model, context, order };
  } catch (error) {
    await llama?.dispose();
    if (error instanceof StatorError || signal.aborted) throw error;
    throw new StatorError("not_ready", `llama.cpp does not start here: ${reasonOf(error)}`, { cause: error });
  }
}

/**
 * The package tries its binary in a child process first, and takes any odd end of that child for an unsuitable binary.
 * About one start in a hundred ends so for no lasting reason.
 */
async function startLlama(module: NativeModule, options: LoadOptions): Promise<Llama> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await module.getLlama({
        build: "never",
        gpu: options.gpu,
        maxThreads: options.threads,
        logLevel: module.LlamaLogLevel.warn,
        logger: (level, message) => options.onLog?.(level, message.trimEnd()),
        progressLogs: false,
      });
    } catch (error) {
      if (!(error instanceof module.NoBinaryFoundError) || attempt === maxStarts) throw error;
    }
  }
}

async function load(llama: Llama, options: LoadOptions, signal: AbortSignal): Promise<LlamaModel> {
  try {
    return await llama.loadModel({ modelPath: options.modelPath, loadSignal: signal });
  } catch (cause) {
    signal.throwIfAborted();
    throw new StatorError("model_unavailable", `llama.cpp cannot load ${options.modelPath}: ${reasonOf(cause)}`, {
      cause,
    });
  }
}

async function createContext(
  model: LlamaModel,
  order: BatchOrder,
  options: LoadOptions,
  signal: AbortSignal,
): Promise<LlamaContext> {
  try {
    return await model.createContext({
      sequences: options.sequences,
      contextSize: options.contextLength,
      batchSize: options.batchSize,
      threads: options.threads,
      ...(options.flashAttention === undefined ? {} : { flashAttention: options.flashAttention }),
      ...(options.kvType === "f32"
        ? { experimentalKvCacheKeyType: "F32" as const, experimentalKvCacheValueType: "F32" as const }
        : {}),
      batching: { itemPrioritizationStrategy: order.strategy },
      // Without this a context that does not fit would silently become a smaller one.
      failedCreationRemedy: false,
      createSignal: signal,
    });
  } catch (cause) {
    signal.throwIfAborted();
    throw new StatorError(
      "model_unavailable",
      `No memory for ${options.sequences} sequences of ${options.contextLength} tokens (lower the number of sequences or the context length): ${reasonOf(cause)}`,
      { cause },
    );
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

import type { LlamaEmbeddingContext } from "node-llama-cpp";
import { type Embedding, StatorError } from "../../protocol/index.ts";
import { asTokens, type Native } from "./native.ts";
import type { NativeStepWatch } from "./native-step-watch.ts";

/** Texts that may wait for the one embedding context. */
const maxWaiting = 256;

export interface LlamaEmbedding extends Embedding {
  /** Frees the context, when there is one. */
  dispose(): Promise<void>;
}

/**
 * Embeddings from a context of their own, made at the first use. One text at a time; an aborted caller is let go at
 * once, and its text is skipped when it has not begun.
 */
export function createEmbedding(
  native: Native,
  options: {
    contextLength: number;
    batchSize: number;
    threads: number;
    vocabularySize: number;
    /** What a token costs on a slow core. */
    msPerToken: number;
    watch: NativeStepWatch;
  },
): LlamaEmbedding {
  let context: Promise<LlamaEmbeddingContext> | undefined;
  let last: Promise<unknown> = Promise.resolve();
  let waiting = 0;
  let disposed = false;

  const open = (): Promise<LlamaEmbeddingContext> => {
    context ??= native.model
      .createEmbeddingContext({
        contextSize: options.contextLength,
        batchSize: options.batchSize,
        threads: options.threads,
      })
      .catch((cause: unknown) => {
        context = undefined;
        throw new StatorError("engine_error", "llama.cpp cannot make an embedding context.", { cause });
      });
    return context;
  };

  const compute = async (tokens: Uint32Array, signal: AbortSignal): Promise<Float32Array> => {
    signal.throwIfAborted();
    if (disposed) throw new StatorError("draining", "The engine is closing.");
    const opened = await open();
    signal.throwIfAborted();
    try {
      // A text is one step, however long it is.
      const { vector } = await options.watch.step(
        opened.getEmbeddingFor(asTokens(Array.from(tokens))),
        tokens.length * options.msPerToken,
      );
      return Float32Array.from(vector);
    } catch (cause) {
      throw new StatorError("engine_error", "llama.cpp failed on this text.", { cause });
    }
  };

  return {
    embed(tokens, signal) {
      for (const token of tokens) {
        if (token >= options.vocabularySize) {
          return Promise.reject(
            new StatorError("invalid_value", `Token id ${token} is outside of the vocabulary.`, { param: "input" }),
          );
        }
      }
      // The package may put one special token on either side.
      if (tokens.length === 0 || tokens.length > options.contextLength - 3) {
        return Promise.reject(
          new StatorError(
            tokens.length === 0 ? "invalid_value" : "context_length_exceeded",
            `The input has ${tokens.length} tokens; it may have 1 to ${options.contextLength - 3}.`,
            { param: "input" },
          ),
        );
      }
      if (waiting >= maxWaiting) {
        return Promise.reject(
          new StatorError("overloaded", "Too many texts wait for their embedding.", { retryAfterSeconds: 1 }),
        );
      }
      waiting++;
      const turn = last.then(() => compute(tokens, signal)).finally(() => waiting--);
      last = turn.catch(() => undefined);
      return abandonOnAbort(turn, signal);
    },
    async dispose() {
      disposed = true;
      await last;
      await (await context?.catch(() => undefined))?.dispose();
    },
  };
}

/** Settles like `work`, or rejects when `signal` aborts first. */
function abandonOnAbort<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason as Error);
    signal.addEventListener("abort", onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

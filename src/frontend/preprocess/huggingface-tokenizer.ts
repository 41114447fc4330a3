import { Worker } from "node:worker_threads";
import { decodeTokenTable } from "../../protocol/codec.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { EncodeJob, ThreadMessage } from "./huggingface-thread.ts";
import type { EncodeOptions, Tokenizer } from "./tokenizer.ts";

/** Texts that wait for the thread; more are refused as `overloaded`. */
const MAX_WAITING = 1024;

/** A tokenizer.json, run in a thread of its own. Added tokens are always parsed, as everywhere with this format. */
export class HuggingFaceTokenizer implements Tokenizer {
  readonly table: TokenTable;
  readonly #thread: Worker;
  readonly #waiting = new Map<number, { resolve(tokens: Uint32Array): void; reject(error: StatorError): void }>();
  #nextId = 0;
  #dead: StatorError | undefined;

  private constructor(thread: Worker, table: TokenTable, onFailed: () => void) {
    this.#thread = thread;
    this.table = table;
    thread.on("message", (message: ThreadMessage) => this.#settle(message));
    const fail = (how: string): void => {
      if (this.#die(new StatorError("internal_error", `The tokenizer thread ${how}.`))) onFailed();
    };
    thread.once("error", (cause) => fail(`failed: ${cause.message}`));
    thread.once("exit", () => fail("ended"));
  }

  /** `onFailed`: the thread has ended by itself (out of memory, for example), and encodes nothing any more. */
  static load(path: string, signal: AbortSignal, onFailed: () => void = () => {}): Promise<HuggingFaceTokenizer> {
    const thread = new Worker(threadUrl(), { workerData: { path } });
    thread.unref();
    return new Promise((resolve, reject) => {
      const fail = (reason: string, cause?: unknown): void => {
        signal.removeEventListener("abort", onAbort);
        void thread.terminate();
        reject(new StatorError("not_ready", `The tokenizer ${path} cannot be loaded: ${reason}`, { cause }));
      };
      const onAbort = (): void => fail("it took too long", signal.reason);
      signal.addEventListener("abort", onAbort, { once: true });
      thread.once("error", (cause) => fail(cause.message, cause));
      thread.once("message", (message: ThreadMessage) => {
        if (message.kind !== "ready") {
          fail(message.kind === "failed" ? message.reason : "unexpected answer of its thread");
          return;
        }
        signal.removeEventListener("abort", onAbort);
        thread.removeAllListeners("error");
        resolve(new HuggingFaceTokenizer(thread, decodeTokenTable(message.table), onFailed));
      });
    });
  }

  encode(text: string, { addSpecial }: EncodeOptions, signal: AbortSignal): Promise<Uint32Array> {
    if (this.#dead) return Promise.reject(this.#dead);
    if (this.#waiting.size >= MAX_WAITING) {
      return Promise.reject(
        new StatorError("overloaded", "Too many prompts wait for the tokenizer.", { retryAfterSeconds: 1 }),
      );
    }
    const id = this.#nextId++;
    return new Promise<Uint32Array>((resolve, reject) => {
      const onAbort = (): void => {
        this.#waiting.delete(id);
        reject(
          signal.reason instanceof StatorError
            ? signal.reason
            : new StatorError("client_closed", "Tokenization was cancelled."),
        );
      };
      if (signal.aborted) {
        onAbort();
        return;
      }
      signal.addEventListener("abort", onAbort, { once: true });
      const done = (): void => signal.removeEventListener("abort", onAbort);
      this.#waiting.set(id, {
        resolve: (tokens) => {
          done();
          resolve(tokens);
        },
        reject: (error) => {
          done();
          reject(error);
        },
      });
      const job: EncodeJob = { id, text, addSpecial };
      this.#thread.postMessage(job);
    });
  }

  async close(): Promise<void> {
    // With the model's last worker: who still waits is too early for the next one.
    this.#die(new StatorError("not_ready", "No worker of the model is ready.", { retryAfterSeconds: 1 }));
    await this.#thread.terminate();
  }

  #settle(message: ThreadMessage): void {
    if (message.kind !== "encoded" && message.kind !== "refused") return;
    const waiting = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.kind === "encoded") waiting?.resolve(message.tokens);
    else waiting?.reject(new StatorError("invalid_value", `The tokenizer refused the text: ${message.reason}`));
  }

  /** False = it was dead already. */
  #die(error: StatorError): boolean {
    if (this.#dead) return false;
    this.#dead = error;
    for (const { reject } of this.#waiting.values()) reject(this.#dead);
    this.#waiting.clear();
    return true;
  }
}

/** Node 20 cannot run TypeScript in a thread, so from the sources (tests) the built file is used. */
function threadUrl(): URL {
  const built = import.meta.url.endsWith(".ts") ? "../../../dist/frontend/preprocess/" : "./";
  return new URL(`${built}huggingface-thread.js`, import.meta.url);
}

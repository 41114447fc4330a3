import type { StatorError } from "../../protocol/errors.ts";
import type { CancelKind, ClientStream, StreamSink } from "./plane.ts";

export interface CallStreamOptions {
  /** What the signal does: `stop` lets the callee say its last words, `kill` ends it at once. Default `stop`. */
  readonly onAbort?: CancelKind;
  /** Once, when the call has ended. */
  readonly onOver?: () => void;
}

/**
 * A call of the plane as an iterator; it is opened by the first `next`. What the consumer has not taken yet is bounded by
 * the plane's window. `signal` cancels the call, leaving the iteration early kills it. `decode` may throw: then the call is
 * killed and the iterator throws.
 */
export class CallStream<T> implements AsyncIterableIterator<T>, StreamSink {
  readonly #open: (sink: StreamSink) => ClientStream;
  readonly #decode: (message: Uint8Array) => T;
  readonly #signal: AbortSignal;
  readonly #onAbortKind: CancelKind;
  readonly #onOver: () => void;
  readonly #arrived: { item: T; bytes: number }[] = [];
  #stream: ClientStream | undefined;
  #over = false;
  #accepted = false;
  #failed = false;
  #error: { readonly reason: unknown } | undefined;
  #waiting: { resolve: (result: IteratorResult<T>) => void; reject: (reason: unknown) => void } | undefined;

  constructor(
    open: (sink: StreamSink) => ClientStream,
    decode: (message: Uint8Array) => T,
    signal: AbortSignal,
    options: CallStreamOptions = {},
  ) {
    this.#open = open;
    this.#decode = decode;
    this.#signal = signal;
    this.#onAbortKind = options.onAbort ?? "stop";
    this.#onOver = options.onOver ?? (() => {});
  }

  /** The callee has taken the call: its handler runs, or has run. */
  get accepted(): boolean {
    return this.#accepted;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T>> {
    if (!this.#stream && !this.#over) {
      try {
        this.#signal.throwIfAborted();
        this.#stream = this.#open(this);
      } catch (thrown) {
        this.#over = true;
        throw thrown;
      }
      this.#signal.addEventListener("abort", this.#onAbort);
    }
    const arrived = this.#arrived.shift();
    if (arrived) {
      this.#stream?.consumed(arrived.bytes);
      return { value: arrived.item, done: false };
    }
    if (this.#error !== undefined) {
      const { reason } = this.#error;
      this.#error = undefined;
      throw reason;
    }
    if (this.#over) return { value: undefined, done: true };
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
  }

  async return(): Promise<IteratorResult<T>> {
    this.#arrived.length = 0;
    this.#stream?.cancel("kill");
    this.#over = true;
    this.#error = undefined;
    return { value: undefined, done: true };
  }

  kill(): void {
    this.#stream?.cancel("kill");
  }

  onAccept(): void {
    this.#accepted = true;
  }

  onData(message: Uint8Array): void {
    this.#accepted = true;
    if (this.#failed) return;
    let item: T;
    try {
      item = this.#decode(message);
    } catch (reason) {
      this.#fail(reason);
      this.#stream?.cancel("kill");
      return;
    }
    if (!this.#waiting) {
      this.#arrived.push({ item, bytes: message.length });
      return;
    }
    this.#stream?.consumed(message.length);
    this.#waiting.resolve({ value: item, done: false });
    this.#waiting = undefined;
  }

  onEnd(): void {
    this.#leave();
    this.#waiting?.resolve({ value: undefined, done: true });
    this.#waiting = undefined;
  }

  onError(error: StatorError): void {
    this.#leave();
    this.#fail(error);
  }

  /** The first failure is the one that is told, once. */
  #fail(reason: unknown): void {
    if (this.#failed) return;
    this.#failed = true;
    if (this.#waiting) this.#waiting.reject(reason);
    else this.#error = { reason };
    this.#waiting = undefined;
  }

  readonly #onAbort = (): void => this.#stream?.cancel(this.#onAbortKind);

  #leave(): void {
    this.#over = true;
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.#onOver();
  }
}

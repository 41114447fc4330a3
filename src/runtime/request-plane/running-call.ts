import { StatorError } from "../../protocol/errors.ts";
import type { StreamLimits } from "./limits.ts";
import type { CancelKind, IncomingCall } from "./plane.ts";

/** What a running call asks of the connection that carries it. Nothing is called after `end` or `error`. */
export interface CallWire {
  accept(queuePosition: number): void;
  data(message: Uint8Array): void;
  end(): void;
  error(error: StatorError): void;
  /** The connection has too much waiting to be sent. */
  readonly congested: boolean;
}

/** An `open` as it came from a client. */
export interface OpenedCall {
  readonly endpoint: string;
  readonly requestId: string;
  readonly body: Uint8Array;
  readonly timeoutMs: number;
  readonly traceparent?: string;
}

/** The server's side of one call, the same for every plane: credit, abort, exactly one end. */
export class RunningCall implements IncomingCall {
  readonly endpoint: string;
  readonly requestId: string;
  readonly body: Uint8Array;
  readonly timeoutMs: number;
  readonly traceparent?: string;
  readonly #abort = new AbortController();
  readonly #maxDataBytes: number;
  #wire: CallWire | undefined;
  #credit: number;
  #accepted = false;
  #waiter: { promise: Promise<void>; resolve: () => void; reject: (reason: unknown) => void } | undefined;

  constructor(opened: OpenedCall, wire: CallWire, limits: StreamLimits) {
    this.endpoint = opened.endpoint;
    this.requestId = opened.requestId;
    this.body = opened.body;
    this.timeoutMs = opened.timeoutMs;
    if (opened.traceparent !== undefined) this.traceparent = opened.traceparent;
    this.#wire = wire;
    this.#credit = limits.windowBytes;
    this.#maxDataBytes = limits.maxDataBytes;
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  accept(queuePosition: number): void {
    if (this.#accepted) return;
    this.#accepted = true;
    this.#wire?.accept(queuePosition);
  }

  send(message: Uint8Array): boolean {
    const wire = this.#wire;
    if (!wire) return false; // nobody listens any more; ready() says why
    if (message.length > this.#maxDataBytes) {
      throw new StatorError(
        "payload_too_large",
        `A message has ${message.length} bytes; the request plane takes at most ${this.#maxDataBytes}.`,
      );
    }
    if (this.#credit - message.length < -this.#maxDataBytes) {
      throw new StatorError("internal_error", `Endpoint ${this.endpoint} sends without waiting for credit.`);
    }
    if (!this.#accepted) this.accept(0);
    this.#credit -= message.length;
    wire.data(message);
    return this.#hasCredit(wire);
  }

  ready(): Promise<void> {
    if (this.#abort.signal.aborted) return Promise.reject(this.#abort.signal.reason);
    if (!this.#wire || this.#hasCredit(this.#wire)) return Promise.resolve();
    if (!this.#waiter) {
      let resolve!: () => void;
      let reject!: (reason: unknown) => void;
      const promise = new Promise<void>((onResolve, onReject) => {
        resolve = onResolve;
        reject = onReject;
      });
      this.#waiter = { promise, resolve, reject };
    }
    return this.#waiter.promise;
  }

  /** The client consumed so many bytes. */
  addCredit(bytes: number): void {
    this.#credit += bytes;
    this.wake();
  }

  /** The connection is no longer congested, or there is new credit: whoever waits may go on. */
  wake(): void {
    if (!this.#waiter || !this.#wire || !this.#hasCredit(this.#wire)) return;
    const { resolve } = this.#waiter;
    this.#waiter = undefined;
    resolve();
  }

  /** The client does not want the answer any more. After `kill` it hears nothing more of this call. */
  cancelled(kind: CancelKind): void {
    if (kind === "kill") this.#wire = undefined;
    this.abort(new StatorError("client_closed", "The client cancelled the request."));
  }

  /** The connection is gone. */
  disconnected(): void {
    this.#wire = undefined;
    this.abort(new StatorError("client_closed", "The connection to the client was lost."));
  }

  abort(reason: StatorError): void {
    this.#abort.abort(reason);
    const waiter = this.#waiter;
    this.#waiter = undefined;
    waiter?.reject(this.#abort.signal.reason);
  }

  /** The handler is done. */
  finish(error: StatorError | undefined): void {
    const wire = this.#wire;
    this.#wire = undefined;
    if (error) wire?.error(error);
    else wire?.end();
    this.#waiter?.resolve();
    this.#waiter = undefined;
  }

  #hasCredit(wire: CallWire): boolean {
    return this.#credit > 0 && !wire.congested;
  }
}

import type { StatorError } from "../../protocol/errors.ts";

/*
 * The request plane: open a stream to an endpoint of a worker, send one body, get messages back until `end` or `error`.
 *
 *   client                                  server
 *     | open(endpoint, body, timeout) ------> |
 *     | <------ accept(queue position) | refuse (error)
 *     | <------ data, data, data ...          |   at most `credit` bytes ahead of what the client has consumed
 *     | credit -----------------------------> |
 *     | cancel(stop | kill) ----------------> |
 *     | <------ end | error                   |
 *
 * Three implementations, `memory.ts`, `tcp/` and `nats/`, pass the same suite, `plane.contract.ts`.
 * A stream ends only by `end` or `error`. A lost connection is `worker_lost` for each accepted stream on it and
 * `worker_unreachable` for each stream that had not been accepted (so that it may be sent elsewhere).
 */

export interface RequestPlaneClient {
  /**
   * Never throws and never calls `sink` before it has returned. Exactly one of `sink.onEnd` and `sink.onError` is
   * called, once, and nothing after it.
   */
  open(address: string, call: OutgoingCall, sink: StreamSink): ClientStream;
  /**
   * `callback` runs after all messages of one socket read (or one tick) have been delivered to their sinks, so that the
   * caller can flush what they caused once. It must not throw. Returns how to unsubscribe.
   */
  onBatchEnd(callback: () => void): () => void;
  /** Ends every open stream with `worker_unreachable` or `worker_lost` and closes the connections. Idempotent. */
  close(): Promise<void>;
}

export interface OutgoingCall {
  readonly endpoint: string;
  readonly requestId: string;
  readonly body: Uint8Array;
  /** Milliseconds that the callee may spend; it also bounds the wait for a connection and for `accept`. */
  readonly timeoutMs: number;
  /** W3C traceparent. */
  readonly traceparent?: string;
}

/** Callbacks, not promises: they run once per token. They must not throw. */
export interface StreamSink {
  /** `queuePosition` 0 = running; n = n-th in the queue. */
  onAccept(queuePosition: number): void;
  /** The bytes are only valid during the call. Give the credit back with `stream.consumed(bytes)`. */
  onData(message: Uint8Array): void;
  onEnd(): void;
  onError(error: StatorError): void;
}

export interface ClientStream {
  /** The client is done with so many bytes; the server may send as many more. */
  consumed(bytes: number): void;
  /**
   * `stop`: finish what is under way and end properly. `kill`: drop everything; the sink hears `client_closed` at once,
   * from inside this call. Without effect on a stream that has ended.
   */
  cancel(kind: CancelKind): void;
}

export type CancelKind = "stop" | "kill";

export interface RequestPlaneServer {
  /** Where clients reach it; valid after `listen`. */
  readonly address: string;
  /** A second call joins the first. */
  listen(): Promise<void>;
  handle(endpoint: string, handler: CallHandler): void;
  /** New calls are refused with `draining`; running ones go on. */
  stopAccepting(): void;
  /** Running calls. */
  readonly activeCalls: number;
  /** Aborts running calls and closes every connection. Idempotent. */
  close(): Promise<void>;
}

/** The call ends when the promise does: resolved = `end`, rejected = `error` (mapped into the catalogue). */
export type CallHandler = (call: IncomingCall) => Promise<void>;

export interface IncomingCall {
  readonly endpoint: string;
  readonly requestId: string;
  readonly body: Uint8Array;
  readonly timeoutMs: number;
  readonly traceparent?: string | undefined;
  /** Aborts on cancel (reason: a StatorError `client_closed`), on the deadline (`deadline_exceeded`) and on a lost client. */
  readonly signal: AbortSignal;
  /**
   * At most once, before the first message; a refusal is a rejection of the handler before `accept`. A message without it
   * stands for `accept(0)`.
   */
  accept(queuePosition: number): void;
  /**
   * Queues a message, which must not be changed afterwards. All messages queued in one tick, of all calls, leave in one
   * write. False = out of credit: await `ready()` before the next. Throws `payload_too_large` for a message over the
   * limit, and `internal_error` when the caller ignores the credit. After the abort messages go nowhere or are still
   * delivered (`stop`); they are never an error.
   */
  send(message: Uint8Array): boolean;
  /** Resolves when there is credit, rejects with `signal.reason` when the call is aborted. */
  ready(): Promise<void>;
}

import { StatorError } from "../../protocol/errors.ts";
import type { Deadline } from "../lifecycle/timer-wheel.ts";
import { type StreamLimits, smallerOf } from "./limits.ts";
import type { CancelKind, ClientStream, OutgoingCall, StreamSink } from "./plane.ts";

/** What an outgoing stream asks of the connection that carries it. */
export interface StreamWire {
  credit(stream: OutgoingStream, bytes: number): void;
  cancel(stream: OutgoingStream, kind: CancelKind): void;
  /** The stream is over on this side; forget it. Called once. */
  over(stream: OutgoingStream): void;
}

/*
 *   waiting --accept--> accepted --end | error--> over
 *      \------------------ end | error -----------/
 */

/** The client's side of one stream, the same for every plane. Sees to it that the sink hears one end, once. */
export class OutgoingStream implements ClientStream {
  readonly call: OutgoingCall;
  /** Chosen by the connection. */
  id = 0;
  /** The open frame has left; set by the connection. */
  sent = false;
  deadline: Deadline | undefined;
  #wire: StreamWire | undefined;
  readonly #sink: StreamSink;
  #limits: StreamLimits;
  #accepted = false;
  #over = false;
  readonly #openedAtMs = performance.now();
  #unconsumed = 0;
  #creditToGive = 0;

  constructor(call: OutgoingCall, sink: StreamSink, limits: StreamLimits) {
    this.call = call;
    this.#sink = sink;
    this.#limits = limits;
  }

  get isOver(): boolean {
    return this.#over;
  }

  get isAccepted(): boolean {
    return this.#accepted;
  }

  /** What is left of the call's time. */
  remainingMs(): number {
    return Math.max(0, this.call.timeoutMs - (performance.now() - this.#openedAtMs));
  }

  /** The server is known: its limits count too. Before anything is received. */
  agree(theirs: StreamLimits): void {
    this.#limits = smallerOf(this.#limits, theirs);
  }

  /** From now on `wire` carries the stream. */
  attach(wire: StreamWire): void {
    this.#wire = wire;
  }

  consumed(bytes: number): void {
    if (this.#over) return;
    this.#unconsumed -= bytes;
    this.#creditToGive += bytes;
    // Half a window at a time: the server never starves, and credit frames are rare.
    if (this.#creditToGive * 2 < this.#limits.windowBytes) return;
    const give = this.#creditToGive;
    this.#creditToGive = 0;
    this.#wire?.credit(this, give);
  }

  cancel(kind: CancelKind): void {
    if (this.#over) return;
    this.cancelOnServer(kind);
    if (kind === "kill" || !this.sent) this.fail(new StatorError("client_closed", "The caller cancelled the request."));
  }

  /** Tells the server, when it knows of the stream; this side stays as it is. */
  cancelOnServer(kind: CancelKind): void {
    if (this.sent) this.#wire?.cancel(this, kind);
  }

  /** The server took the call. */
  accept(queuePosition: number): void {
    if (this.#over || this.#accepted) return;
    this.#accepted = true;
    try {
      this.#sink.onAccept(queuePosition);
    } catch (thrown) {
      this.#sinkFailed(thrown);
    }
  }

  /** False = the server sent more than it may. */
  data(message: Uint8Array): boolean {
    if (this.#over) return true;
    this.#unconsumed += message.length;
    if (this.#unconsumed > this.#limits.windowBytes + this.#limits.maxDataBytes) return false;
    try {
      this.#sink.onData(message);
    } catch (thrown) {
      this.#sinkFailed(thrown);
    }
    return true;
  }

  end(): void {
    if (!this.#leave()) return;
    try {
      this.#sink.onEnd();
    } catch (thrown) {
      warnAbout(thrown);
    }
  }

  fail(error: StatorError): void {
    if (!this.#leave()) return;
    try {
      this.#sink.onError(error);
    } catch (thrown) {
      warnAbout(thrown);
    }
  }

  /** The connection is gone: may the call be sent elsewhere, or was it under way? */
  lost(address: string, why: string): void {
    this.fail(
      this.#accepted
        ? new StatorError("worker_lost", `The connection to the worker at ${address} was lost: ${why}.`)
        : unreachable(address, why),
    );
  }

  /** The time is up on this side. */
  expire(): void {
    if (this.#over) return;
    this.cancelOnServer("kill");
    this.fail(deadlineExceeded(this.call.timeoutMs));
  }

  /** A sink must not throw; when it does, it costs its own stream and not its neighbours on the connection. */
  #sinkFailed(cause: unknown): void {
    this.cancelOnServer("kill");
    this.fail(new StatorError("internal_error", "The receiver of a stream failed.", { cause }));
  }

  #leave(): boolean {
    if (this.#over) return false;
    this.#over = true;
    this.deadline?.cancel();
    this.#wire?.over(this);
    return true;
  }
}

/** The stream has ended already; all that is left is to make the mistake visible. */
function warnAbout(thrown: unknown): void {
  process.emitWarning(thrown instanceof Error ? thrown : String(thrown));
}

export function unreachable(address: string, why: string): StatorError {
  return new StatorError("worker_unreachable", `The worker at ${address} cannot be reached: ${why}.`);
}

export function deadlineExceeded(timeoutMs: number): StatorError {
  return new StatorError("deadline_exceeded", `The request was not done within its ${Math.round(timeoutMs)} ms.`);
}

export function openTooLarge(sizeBytes: number, limitBytes: number): StatorError {
  return new StatorError(
    "payload_too_large",
    `The request has ${sizeBytes} bytes; the request plane takes at most ${limitBytes}.`,
  );
}

import { StatorError } from "../../../protocol/errors.ts";
import type { CallRunner } from "../call-runner.ts";
import {
  decodeCancel,
  decodeOpen,
  decodeU32,
  encodeError,
  encodeU32,
  FrameType,
  type Hello,
  malformed,
} from "../frames/frames.ts";
import type { StreamLimits } from "../limits.ts";
import type { CallWire, RunningCall } from "../running-call.ts";
import type { ByteLink } from "./byte-link.ts";
import { Link, type LinkEvents, type LinkOptions } from "./link.ts";

/** The server's end of a connection and the calls on it. */
export class ServerConnection implements LinkEvents {
  readonly #link: Link;
  readonly #options: LinkOptions;
  readonly #runner: CallRunner;
  readonly #onGone: (connection: ServerConnection) => void;
  /** Calls whose client still listens. */
  readonly #calls = new Map<number, RunningCall>();
  /** All calls, also those whose client does not listen any more. */
  #running = 0;
  #theirs: StreamLimits = { maxDataBytes: 0, windowBytes: 0 };

  constructor(
    bytes: ByteLink,
    options: LinkOptions,
    runner: CallRunner,
    onGone: (connection: ServerConnection) => void,
  ) {
    this.#options = options;
    this.#runner = runner;
    this.#onGone = onGone;
    this.#link = new Link("server", bytes, options, this);
  }

  start(): void {
    this.#link.start();
  }

  /** The client has introduced and proven itself. */
  get isReady(): boolean {
    return this.#link.isReady;
  }

  /** No new calls here; running ones go on. */
  goaway(): void {
    if (this.#link.isReady) this.#link.send(FrameType.goaway, 0);
  }

  fail(error: StatorError): void {
    this.#link.fail(error);
  }

  close(): void {
    this.#link.close("the server was closed");
  }

  onReady(hello: Hello): void {
    this.#theirs = hello;
    if (!this.#runner.isAccepting) this.goaway();
  }

  isExpected(): boolean {
    return true; // a call that does not run yet
  }

  onFrame(type: number, id: number, payload: Uint8Array): void {
    switch (type) {
      case FrameType.open:
        this.#open(id, payload);
        break;
      // Frames for a call that has just ended may still be under way.
      case FrameType.credit: {
        const bytes = decodeU32(payload);
        this.#calls.get(id)?.addCredit(bytes);
        break;
      }
      case FrameType.cancel: {
        const kind = decodeCancel(payload);
        const call = this.#calls.get(id);
        if (kind === "kill") {
          this.#calls.delete(id);
          this.#link.forget(id);
        }
        call?.cancelled(kind);
        break;
      }
      default:
        throw malformed(`a client does not send frames of type ${type}`);
    }
  }

  #open(id: number, payload: Uint8Array): void {
    if (this.#calls.has(id)) throw malformed(`it opened stream ${id} twice`);
    const opened = decodeOpen(payload);
    const wire = new LinkCallWire(this.#link, id);
    const { maxStreams } = this.#options.limits;
    if (this.#running >= maxStreams) {
      const what = `The connection carries its ${maxStreams} calls already.`;
      wire.error(new StatorError("overloaded", what, { retryAfterSeconds: 1 }));
      return;
    }
    this.#running++;
    const call = this.#runner.start(opened, wire, this.#theirs, () => {
      this.#running--;
      if (this.#calls.get(id) === call) this.#calls.delete(id);
    });
    if (call) this.#calls.set(id, call);
    else this.#running--;
  }

  onGoaway(): void {}

  onBatch(): void {}

  onDrain(): void {
    for (const call of this.#calls.values()) call.wake();
  }

  onSent(id: number): void {
    this.#calls.get(id)?.wake();
  }

  onClosed(): void {
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) call.disconnected();
    this.#onGone(this);
  }
}

class LinkCallWire implements CallWire {
  readonly #link: Link;
  readonly #id: number;

  constructor(link: Link, id: number) {
    this.#link = link;
    this.#id = id;
  }

  get congested(): boolean {
    return this.#link.isSending(this.#id) || this.#link.congested;
  }

  accept(queuePosition: number): void {
    this.#link.send(FrameType.accept, this.#id, encodeU32(queuePosition));
    // At once: the handler may now hold this thread, and must not look like one that never got the call.
    this.#link.flush();
  }

  data(message: Uint8Array): void {
    this.#link.send(FrameType.data, this.#id, message);
  }

  end(): void {
    this.#link.send(FrameType.end, this.#id);
  }

  error(error: StatorError): void {
    this.#link.send(FrameType.error, this.#id, encodeError(error));
  }
}

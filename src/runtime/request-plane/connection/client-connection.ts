import { StatorError } from "../../../protocol/errors.ts";
import {
  decodeError,
  decodeU32,
  encodeCancel,
  encodeOpenHead,
  encodeU32,
  FrameType,
  type Hello,
  MAX_OPEN_HEAD_BYTES,
  malformed,
} from "../frames/frames.ts";
import { type OutgoingStream, openTooLarge, type StreamWire, unreachable } from "../outgoing-stream.ts";
import type { CancelKind } from "../plane.ts";
import type { ByteLink } from "./byte-link.ts";
import { Link, type LinkEvents, type LinkOptions } from "./link.ts";

export interface ConnectionOwner {
  /** The peer has introduced and proven itself. */
  onConnected(connection: ClientConnection): void;
  /** Called once. `connected` = it had been usable; `error` when there is more to say than that it is gone. */
  onGone(connection: ClientConnection, connected: boolean, error: StatorError | undefined): void;
  onStreamOver(stream: OutgoingStream): void;
  onBatch(): void;
}

/*
 *   connecting --handshake--> ready --goaway--> draining
 *        \-------------------- link gone ------/--> gone
 */

/** The client's end of a connection and the streams on it. Streams opened before it is ready wait for it. */
export class ClientConnection implements StreamWire, LinkEvents {
  readonly address: string;
  readonly #link: Link;
  readonly #options: LinkOptions;
  readonly #owner: ConnectionOwner;
  readonly #streams = new Map<number, OutgoingStream>();
  #hello: Hello | undefined;
  #draining = false;
  #lastId = 0;

  constructor(address: string, bytes: ByteLink, options: LinkOptions, owner: ConnectionOwner) {
    this.address = address;
    this.#options = options;
    this.#owner = owner;
    this.#link = new Link("client", bytes, options, this);
    this.#link.start();
  }

  get isDraining(): boolean {
    return this.#draining;
  }

  /** Takes the stream, or tells why not. */
  add(stream: OutgoingStream): StatorError | undefined {
    const limit = Math.min(this.#options.limits.maxStreams, this.#hello?.maxStreams ?? Number.POSITIVE_INFINITY);
    if (this.#streams.size >= limit) {
      return new StatorError("overloaded", `The connection to the worker carries its ${limit} calls already.`, {
        retryAfterSeconds: 1,
      });
    }
    do this.#lastId = this.#lastId === 0xffffffff ? 1 : this.#lastId + 1;
    while (this.#streams.has(this.#lastId));
    stream.id = this.#lastId;
    this.#streams.set(stream.id, stream);
    stream.attach(this);
    return this.#hello ? this.#sendOpen(stream, this.#hello) : undefined;
  }

  close(why: string): void {
    this.#link.close(why);
  }

  #sendOpen(stream: OutgoingStream, hello: Hello): StatorError | undefined {
    const { call } = stream;
    if (call.body.length > hello.maxOpenBytes) return openTooLarge(call.body.length, hello.maxOpenBytes);
    const head = encodeOpenHead(call, stream.remainingMs());
    if (head.length > MAX_OPEN_HEAD_BYTES) {
      return new StatorError("invalid_value", "Endpoint, request id and traceparent are too long together.");
    }
    stream.sent = true;
    stream.agree(hello);
    this.#link.send(FrameType.open, stream.id, call.body, head);
    return undefined;
  }

  // What a stream asks.
  credit(stream: OutgoingStream, bytes: number): void {
    this.#link.send(FrameType.credit, stream.id, encodeU32(bytes));
  }

  cancel(stream: OutgoingStream, kind: CancelKind): void {
    // A call that is to be dropped need not arrive first.
    if (kind === "kill") this.#link.sendInstead(FrameType.cancel, stream.id, encodeCancel(kind));
    else this.#link.send(FrameType.cancel, stream.id, encodeCancel(kind));
  }

  over(stream: OutgoingStream): void {
    this.#streams.delete(stream.id);
    this.#link.forget(stream.id);
    this.#owner.onStreamOver(stream);
  }

  // What the link tells.
  onReady(hello: Hello): void {
    this.#hello = hello;
    this.#owner.onConnected(this);
    for (const stream of [...this.#streams.values()]) {
      const failure = this.#sendOpen(stream, hello);
      if (failure) stream.fail(failure);
    }
  }

  isExpected(id: number): boolean {
    return this.#streams.has(id); // not one that was cancelled here
  }

  onFrame(type: number, id: number, payload: Uint8Array): void {
    const stream = this.#streams.get(id);
    // Frames of a stream that was cancelled here may still be under way.
    if (type === FrameType.data) {
      if (stream && !stream.data(payload)) throw malformed("it sent more than the credit it had");
      return;
    }
    switch (type) {
      case FrameType.accept: {
        const queuePosition = decodeU32(payload);
        stream?.accept(queuePosition);
        break;
      }
      case FrameType.end:
        stream?.end();
        break;
      case FrameType.error: {
        const error = decodeError(payload);
        stream?.fail(error);
        break;
      }
      default:
        throw malformed(`a server does not send frames of type ${type}`);
    }
  }

  onGoaway(): void {
    this.#draining = true;
  }

  onBatch(): void {
    this.#owner.onBatch();
  }

  onDrain(): void {}

  onSent(): void {}

  onClosed(why: string, error: StatorError | undefined): void {
    // A worker that breaks the protocol, or speaks another version of it, is lost to its callers: others need not be.
    const isBroken = error?.code === "protocol_error";
    this.#owner.onGone(this, this.#hello !== undefined, isBroken ? unreachable(this.address, why) : error);
    for (const stream of [...this.#streams.values()]) {
      if (error && !isBroken) stream.fail(error);
      else stream.lost(this.address, why);
    }
  }
}

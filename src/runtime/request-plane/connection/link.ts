import { type StatorError, toStatorError } from "../../../protocol/errors.ts";
import type { Deadline, TimerWheel } from "../../lifecycle/timer-wheel.ts";
import { uniqueId } from "../../lifecycle/unique-id.ts";
import { Assembler } from "../frames/assembler.ts";
import { FrameParser } from "../frames/frame-parser.ts";
import { FrameSender } from "../frames/frame-sender.ts";
import { FrameWriter } from "../frames/frame-writer.ts";
import {
  decodeError,
  encodeError,
  FrameType,
  type Hello,
  MAX_OPEN_HEAD_BYTES,
  malformed,
  payloadLimits,
} from "../frames/frames.ts";
import type { RequestPlaneLimits } from "../limits.ts";
import type { ByteLink, ByteLinkEvents } from "./byte-link.ts";
import { Handshake, type Role } from "./handshake.ts";
import { Heartbeat, type HeartbeatTimes } from "./heartbeat.ts";

export interface LinkEvents {
  /** The peer has introduced itself and, where there is a secret, proven that it has it. Called once, before any `onFrame`. */
  onReady(hello: Hello): void;
  /** Whether a message that comes in pieces for the stream is to be put together. */
  isExpected(stream: number): boolean;
  /** A frame that concerns a stream, put together. May throw `protocol_error`, which closes the link. */
  onFrame(type: number, stream: number, payload: Uint8Array): void;
  /** The peer takes no new calls. */
  onGoaway(): void;
  /** All frames of one read have been handed out. */
  onBatch(): void;
  /** The link has room again. */
  onDrain(): void;
  /** What a stream had to send in pieces has left. */
  onSent(stream: number): void;
  /** The link is over, once. `error` is set when there is more to say than that the connection is gone. */
  onClosed(why: string, error: StatorError | undefined): void;
}

export interface LinkOptions {
  readonly limits: RequestPlaneLimits;
  readonly heartbeat: HeartbeatTimes;
  readonly wheel: TimerWheel;
  /** Until the peer has introduced and proven itself. */
  readonly handshakeTimeoutMs: number;
  /** Both sides have the same one, or none. */
  readonly sharedSecret: string | undefined;
}

/** A peer that sends while so many times `maxQueuedBytes` wait for it does not read: nothing else bounds answers to it. */
const UNREAD_FACTOR = 32;

/** One connection, seen from either side: handshake, frames in and out, heartbeat, and exactly one end. */
export class Link implements ByteLinkEvents {
  readonly #bytes: ByteLink;
  readonly #options: LinkOptions;
  readonly #events: LinkEvents;
  readonly #parser: FrameParser;
  readonly #writer: FrameWriter;
  readonly #sender: FrameSender;
  readonly #assembler: Assembler;
  readonly #heartbeat: Heartbeat;
  readonly #handshakeDeadline: Deadline;
  /** Undefined when it is done. */
  #handshake: Handshake | undefined;
  #closed = false;
  #blocked = false;

  constructor(role: Role, bytes: ByteLink, options: LinkOptions, events: LinkEvents) {
    const { limits, heartbeat, wheel } = options;
    this.#bytes = bytes;
    this.#options = options;
    this.#events = events;
    this.#parser = new FrameParser(payloadLimits(limits), this.#onFrame);
    this.#writer = new FrameWriter(bytes);
    this.#sender = new FrameSender(this.#writer, (stream) => events.onSent(stream));
    this.#assembler = new Assembler(
      role === "server" ? limits.maxOpenBytes + MAX_OPEN_HEAD_BYTES : limits.maxDataBytes,
    );
    this.#handshake = new Handshake(role, limits, options.sharedSecret);
    this.#heartbeat = new Heartbeat(
      heartbeat,
      wheel,
      () => this.#writer.frame(FrameType.ping, 0, noBytes),
      () => this.#over("it stopped answering", undefined, true),
    );
    this.#handshakeDeadline = wheel.schedule(options.handshakeTimeoutMs, () =>
      this.#over("it did not introduce itself in time", undefined, true),
    );
  }

  /** Begins; the owner must be ready for events. */
  start(): void {
    this.#bytes.start(this);
  }

  /** The handshake is done. */
  get isReady(): boolean {
    return !this.#handshake;
  }

  /** Too many bytes wait for the link. `onDrain` follows. */
  get congested(): boolean {
    if (this.#writer.waitingBytes < this.#options.limits.maxQueuedBytes) return false;
    this.#blocked = true;
    return true;
  }

  /** The stream still has to send what it was given. `onSent` follows. */
  isSending(stream: number): boolean {
    return this.#sender.hasBacklog(stream);
  }

  send(type: number, stream: number, payload?: Uint8Array, head?: Uint8Array): void {
    if (!this.#closed) this.#sender.send(type, stream, payload ?? noBytes, head);
  }

  /** Sends this frame in place of all that the stream has not sent yet. */
  sendInstead(type: number, stream: number, payload: Uint8Array): void {
    this.#sender.forget(stream);
    this.send(type, stream, payload);
  }

  /** Nothing more is wanted of the stream, in either direction. */
  forget(stream: number): void {
    this.#sender.forget(stream);
    this.#assembler.forget(stream);
  }

  /** Gives what is queued to the link now, for what must not wait for the end of this turn. */
  flush(): void {
    this.#writer.flush();
  }

  /** Tells the peer why, as far as the link still takes it, and closes. */
  fail(error: StatorError): void {
    if (this.#closed) return;
    this.#writer.frame(FrameType.goaway, 0, encodeError(error));
    this.#over(sentence(error), error, false);
  }

  /** Lets go what is queued, then closes. `onClosed` is called before this returns. */
  close(why: string): void {
    this.#over(why, undefined, false);
  }

  // What the bytes tell.
  onOpen(): void {
    if (this.#closed || !this.#handshake) return;
    this.#writer.frame(FrameType.hello, 0, this.#handshake.ourHello);
    this.#writer.flush();
  }

  onBytes(chunk: Uint8Array): void {
    if (this.#closed) return;
    this.#heartbeat.heard();
    try {
      this.#parser.push(chunk);
    } catch (thrown) {
      this.fail(toStatorError(thrown, () => uniqueId("err-")));
    }
    if (this.#writer.waitingBytes > this.#options.limits.maxQueuedBytes * UNREAD_FACTOR) {
      this.#over("it does not take what is sent to it", undefined, true);
    }
    this.#events.onBatch();
  }

  onDrain(): void {
    this.#sender.pump();
    if (!this.#blocked) return;
    this.#blocked = false;
    this.#events.onDrain();
  }

  onClosed(why: string, error?: StatorError): void {
    this.#over(this.#handshake ? `${why} before the handshake was done` : why, error, true);
  }

  #over(why: string, error: StatorError | undefined, atOnce: boolean): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#handshakeDeadline.cancel();
    this.#heartbeat.stop();
    this.#parser.stop();
    if (atOnce) {
      this.#bytes.destroy();
    } else {
      this.#writer.flush();
      this.#bytes.end();
    }
    this.#writer.close();
    this.#sender.close();
    this.#assembler.clear();
    this.#events.onClosed(why, error);
    this.#events.onBatch();
  }

  readonly #onFrame = (type: number, stream: number, payload: Uint8Array): void => {
    if (this.#handshake) {
      this.#introduce(this.#handshake, type, payload);
      return;
    }
    switch (type) {
      case FrameType.data:
      case FrameType.open:
        this.#events.onFrame(type, stream, this.#assembler.complete(stream, payload));
        break;
      case FrameType.part:
        if (this.#events.isExpected(stream)) this.#assembler.add(stream, payload);
        break;
      case FrameType.ping:
        this.#writer.frame(FrameType.pong, 0, noBytes);
        break;
      case FrameType.pong:
        break;
      case FrameType.goaway:
        this.#goaway(payload);
        break;
      case FrameType.hello:
      case FrameType.proof:
        throw malformed("it introduced itself twice");
      default:
        this.#events.onFrame(type, stream, payload);
    }
  };

  #introduce(handshake: Handshake, type: number, payload: Uint8Array): void {
    // A side that does not like the other's hello says so instead of going on.
    if (type === FrameType.goaway && payload.length > 0) {
      this.#goaway(payload);
      return;
    }
    const proof = handshake.receive(type, payload);
    if (proof) this.#writer.frame(FrameType.proof, 0, proof);
    const hello = handshake.result;
    if (!hello) return;
    this.#handshake = undefined;
    this.#handshakeDeadline.cancel();
    this.#heartbeat.start();
    this.#events.onReady(hello);
  }

  #goaway(payload: Uint8Array): void {
    if (payload.length === 0) {
      this.#events.onGoaway();
      return;
    }
    const error = decodeError(payload);
    this.#over(sentence(error), error, false);
  }
}

/** To be part of another sentence. */
function sentence({ message }: StatorError): string {
  return message.replace(/\.$/, "");
}

const noBytes = new Uint8Array(0);

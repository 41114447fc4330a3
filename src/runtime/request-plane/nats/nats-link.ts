import type { Msg, Subscription } from "@nats-io/transport-node";
import { StatorError } from "../../../protocol/errors.ts";
import type { ByteLink, ByteLinkEvents } from "../connection/byte-link.ts";
import type { HubUser, NatsHub } from "./nats-hub.ts";

/*
 * A stream of bytes over NATS, which itself delivers messages at most once and tells nobody about those it drops.
 *
 *   client                                            server
 *     | syn, reply: client's private subject --------> |   on the server's subject; nobody there = NATS says so at once
 *     | <-------- ack, reply: server's private subject |
 *     | data, data ... -- private subjects -- data ... |   in sequence: a gap ends the link
 *     | <--------------------------- taken (bytes) --> |   how far the other side is, each TAKEN_EVERY_BYTES
 *     | fin | rst <----------------------------------> |
 *
 *   message | u8 kind | u32 sequence (data), bytes (taken) | payload (data) |      little endian
 *
 * A killed peer says nothing; the heartbeat above notices. Losing NATS ends the link at once.
 */

const Kind = { syn: 1, ack: 2, data: 3, taken: 4, fin: 5, rst: 6 } as const;
const HEAD_BYTES = 5;
const MAX_MESSAGE_BYTES = 256 * 1024;
const TAKEN_EVERY_BYTES = 64 * 1024;
/** A peer that is so far behind is given up, before NATS does it or memory runs out. */
const MAX_UNTAKEN_BYTES = 32 * 1024 * 1024;

/** One private subject for each side, one publisher each. */
export class NatsLink implements ByteLink, HubUser {
  readonly #hub: NatsHub;
  readonly #begin: (link: NatsLink) => Promise<void>;
  #events: ByteLinkEvents | undefined;
  #subscription: Subscription | undefined;
  /** The other side's private subject; undefined until the handshake above is done. */
  #peer: string | undefined;
  #sequence = 0;
  #expected = 0;
  /** Bytes that the other side has not taken. */
  #untaken = 0;
  /** Bytes that this side has taken and not told. */
  #untold = 0;

  private constructor(hub: NatsHub, begin: (link: NatsLink) => Promise<void>) {
    this.#hub = hub;
    this.#begin = begin;
  }

  /** A link to the server with this id, begun by `start`. */
  static to(hub: NatsHub, serverId: string): NatsLink {
    return new NatsLink(hub, async (link) => {
      await hub.connect();
      if (!link.#events) return;
      const own = link.#listen();
      hub.publish(hub.subjectOf(serverId), head(Kind.syn, 0), own);
    });
  }

  /** The server's end of a link that a client asked for with a syn. */
  static accepted(hub: NatsHub, clientSubject: string): NatsLink {
    return new NatsLink(hub, async (link) => {
      const own = link.#listen();
      link.#peer = clientSubject;
      hub.publish(clientSubject, head(Kind.ack, 0), own);
      link.#events?.onOpen();
    });
  }

  /** Tells a client that there will be no link. */
  static refuse(hub: NatsHub, clientSubject: string): void {
    hub.publish(clientSubject, head(Kind.rst, 0));
  }

  static isSyn(payload: Uint8Array): boolean {
    return payload[0] === Kind.syn;
  }

  get waitingBytes(): number {
    return Math.max(0, this.#untaken - TAKEN_EVERY_BYTES); // so much may have been taken and not told
  }

  start(events: ByteLinkEvents): void {
    this.#events = events;
    this.#begin(this).catch((thrown: unknown) => this.#failed(thrown));
  }

  write(parts: readonly Uint8Array[]): void {
    if (!this.#events || this.#peer === undefined) return;
    const room = Math.min(MAX_MESSAGE_BYTES, this.#hub.maxPayload) - HEAD_BYTES;
    if (room <= 0) return; // NATS is away; `natsLost` follows
    const bytes = Buffer.concat(parts);
    for (let at = 0; at < bytes.length; at += room) {
      const piece = bytes.subarray(at, at + room);
      this.#hub.publish(this.#peer, Buffer.concat([head(Kind.data, this.#sequence), piece]));
      this.#sequence = (this.#sequence + 1) >>> 0;
    }
    this.#untaken += bytes.length;
    if (this.#untaken > MAX_UNTAKEN_BYTES) this.#over("it does not take what is sent to it", Kind.rst);
  }

  end(): void {
    this.#leave(Kind.fin);
  }

  destroy(): void {
    this.#leave(Kind.rst);
  }

  natsLost(why: string): void {
    this.#over(why, Kind.rst);
  }

  /** Subscribes to a private subject and returns it. */
  #listen(): string {
    const own = this.#hub.privateSubject();
    this.#subscription = this.#hub.subscribe(own, (error, message) => {
      if (error) this.#over(`NATS refuses its subject: ${error.message}`, Kind.rst);
      else this.#onMessage(message);
    });
    this.#hub.add(this);
    return own;
  }

  #onMessage(message: Msg): void {
    const { data } = message;
    if (this.#peer === undefined) {
      this.#onAnswer(message);
      return;
    }
    if (data.length < HEAD_BYTES) {
      this.#over("it sent a message that is none", Kind.rst);
      return;
    }
    const number = (data[1]! | (data[2]! << 8) | (data[3]! << 16) | (data[4]! << 24)) >>> 0;
    switch (data[0]) {
      case Kind.data:
        this.#onData(number, data.subarray(HEAD_BYTES));
        break;
      case Kind.taken:
        if (number > this.#untaken) this.#over("it takes more than was sent to it", Kind.rst);
        else this.#untaken -= number;
        this.#events?.onDrain();
        break;
      case Kind.fin:
        this.#over("it closed the connection", undefined);
        break;
      case Kind.rst:
        this.#over("it gave up the connection", undefined);
        break;
      default:
        this.#over("it sent a message that is none", Kind.rst);
    }
  }

  /** The answer to this client's syn. */
  #onAnswer(message: Msg): void {
    if (message.headers?.code === 503) this.#over("nobody listens there", undefined);
    else if (message.data[0] === Kind.ack && this.#hub.isPrivate(message.reply)) {
      this.#peer = message.reply;
      this.#events?.onOpen();
    } else this.#over("it takes no further connections", undefined);
  }

  #onData(sequence: number, bytes: Uint8Array): void {
    if (sequence !== this.#expected) {
      this.#over("NATS lost messages on the way", Kind.rst);
      return;
    }
    this.#expected = (sequence + 1) >>> 0;
    this.#untold += bytes.length;
    this.#events?.onBytes(bytes);
    if (this.#untold < TAKEN_EVERY_BYTES || this.#peer === undefined) return;
    this.#hub.publish(this.#peer, head(Kind.taken, this.#untold));
    this.#untold = 0;
  }

  #failed(thrown: unknown): void {
    const events = this.#events;
    this.#leave(undefined);
    const error = thrown instanceof StatorError ? thrown : undefined;
    events?.onClosed(thrown instanceof Error ? thrown.message : String(thrown), error);
  }

  #over(why: string, tell: number | undefined): void {
    const events = this.#events;
    this.#leave(tell);
    events?.onClosed(why);
  }

  /** Nothing is sent or heard any more. `tell`: the kind of the last message. */
  #leave(tell: number | undefined): void {
    if (!this.#events) return;
    this.#events = undefined;
    this.#hub.remove(this);
    if (tell !== undefined && this.#peer !== undefined) this.#hub.publish(this.#peer, head(tell, 0));
    this.#subscription?.unsubscribe();
  }
}

function head(kind: number, number: number): Uint8Array {
  const bytes = Buffer.allocUnsafe(HEAD_BYTES);
  bytes[0] = kind;
  bytes.writeUInt32LE(number, 1);
  return bytes;
}

import { StatorError } from "../../protocol/errors.ts";
import { encodeFrame, frameOverhead, MAX_FRAME_EVENTS } from "./frame.ts";
import { type EventOrigin, type EventOutlet, type EventTransport, originName } from "./plane.ts";
import { ReplayRing, type RingLimits } from "./replay-ring.ts";

export interface PublisherOptions {
  /** What can be replayed. It also bounds what waits for a transport that is busy. Default 131,072 events, 32 MiB. */
  readonly ring?: Partial<RingLimits>;
  /** A frame is closed at this size; a larger event has a frame of its own. Default 64 KiB. */
  readonly frameBytes?: number;
  /** How often subscribers hear the latest sequence, so that a lost tail is noticed. Default 1 s. */
  readonly heartbeatMs?: number;
}

export interface PublisherStats {
  /** Events taken. Equals the next sequence. */
  readonly published: number;
  readonly publishedBytes: number;
  readonly sentFrames: number;
  readonly heartbeats: number;
  /** Events that left the ring before the transport took them: subscribers hear of a loss. */
  readonly dropped: number;
  /** Events after `close`. */
  readonly refused: number;
  readonly ringEvents: number;
  readonly ringBytes: number;
}

const defaultRing: RingLimits = { maxEvents: 131_072, maxBytes: 32 * 1024 * 1024 };

/**
 * Numbers events and sends them, those of one tick together. The ring is also the queue in front of the transport: what
 * has not been sent is read from it, so that there is one bound and one copy of every event.
 */
export class EventPublisher {
  readonly origin: EventOrigin;
  readonly #name: Uint8Array;
  readonly #outlet: EventOutlet;
  readonly #ring: ReplayRing;
  readonly #frameBytes: number;
  readonly #heartbeat: NodeJS.Timeout;
  #pending: Uint8Array[] = [];
  #pendingBytes = 0;
  #flush: NodeJS.Immediate | undefined;
  /** Sequence of the first event that the transport has not got yet. */
  #sent = 0;
  #sending = false;
  #beatDue = false;
  #closed = false;
  #publishedBytes = 0;
  #sentFrames = 0;
  #heartbeats = 0;
  #dropped = 0;
  #refused = 0;

  /** Rejects with the StatorError of the transport. */
  static async open(
    transport: EventTransport,
    origin: EventOrigin,
    options: PublisherOptions = {},
  ): Promise<EventPublisher> {
    return new EventPublisher(origin, await transport.bind(origin), options);
  }

  private constructor(origin: EventOrigin, outlet: EventOutlet, options: PublisherOptions) {
    this.origin = origin;
    this.#name = Buffer.from(originName(origin));
    this.#outlet = outlet;
    this.#ring = new ReplayRing({ ...defaultRing, ...options.ring });
    this.#frameBytes = Math.min(options.frameBytes ?? 64 * 1024, outlet.maxFrameBytes);
    this.#heartbeat = setInterval(() => this.#beat(), options.heartbeatMs ?? 1000);
    this.#heartbeat.unref();
  }

  /** For the record in discovery. */
  get address(): string {
    return this.#outlet.address;
  }

  /**
   * Never waits. The payload must not be changed afterwards. Throws `payload_too_large` for one that does not fit into a
   * frame of the transport.
   */
  publish(payload: Uint8Array): void {
    const alone = frameOverhead(this.#name, 1) + payload.length;
    if (alone > this.#outlet.maxFrameBytes) {
      const limit = this.#outlet.maxFrameBytes - frameOverhead(this.#name, 1);
      throw new StatorError(
        "payload_too_large",
        `An event of topic ${this.origin.topic} has ${payload.length} bytes; this event plane takes at most ${limit}.`,
      );
    }
    if (this.#closed) {
      this.#refused++;
      return;
    }
    const full = frameOverhead(this.#name, this.#pending.length + 1) + this.#pendingBytes + payload.length;
    if (full > this.#frameBytes || this.#pending.length === MAX_FRAME_EVENTS) this.#seal();
    this.#pending.push(payload);
    this.#pendingBytes += payload.length;
    this.#publishedBytes += payload.length;
    this.#flush ??= setImmediate(() => {
      this.#flush = undefined;
      this.#seal();
      void this.#send();
    });
  }

  /**
   * The frames from the one with sequence `from` on, or from the oldest that is left; then a heartbeat. What is published
   * meanwhile is not part of it. May be read slowly.
   */
  *replay(from: number): Generator<Uint8Array, void> {
    this.#seal();
    const end = this.#ring.next;
    for (let sequence = from; sequence < end; ) {
      const frame = this.#ring.frameAt(sequence)!;
      yield frame.bytes;
      sequence = frame.first + frame.count;
    }
    yield encodeFrame(this.#name, end, [], 0).bytes;
  }

  stats(): PublisherStats {
    return {
      published: this.#ring.next + this.#pending.length,
      publishedBytes: this.#publishedBytes,
      sentFrames: this.#sentFrames,
      heartbeats: this.#heartbeats,
      dropped: this.#dropped,
      refused: this.#refused,
      ringEvents: this.#ring.next - this.#ring.first,
      ringBytes: this.#ring.bytes,
    };
  }

  /** Hands what is published to the transport, as far as that takes it, and closes the way out. Idempotent. */
  async close(): Promise<void> {
    if (!this.#closed) {
      clearInterval(this.#heartbeat);
      clearImmediate(this.#flush);
      this.#seal();
      void this.#send();
      this.#closed = true;
    }
    await this.#outlet.close();
  }

  /** Makes a frame of the pending events. */
  #seal(): void {
    if (this.#pending.length === 0) return;
    this.#ring.append(encodeFrame(this.#name, this.#ring.next, this.#pending, this.#pendingBytes));
    this.#pending = [];
    this.#pendingBytes = 0;
  }

  async #send(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    for (let frame = this.#nextFrame(); frame && !this.#closed; frame = this.#nextFrame()) {
      const busy = this.#outlet.send(frame);
      if (busy) await busy;
    }
    this.#sending = false;
  }

  #nextFrame(): Uint8Array | undefined {
    const frame = this.#ring.frameAt(this.#sent);
    if (frame) {
      this.#dropped += frame.first - this.#sent;
      this.#sent = frame.first + frame.count;
      this.#sentFrames++;
      return frame.bytes;
    }
    if (!this.#beatDue) return undefined;
    this.#beatDue = false;
    this.#heartbeats++;
    return encodeFrame(this.#name, this.#sent, [], 0).bytes;
  }

  #beat(): void {
    this.#beatDue = true;
    void this.#send();
  }
}

import type { ByteLink } from "../connection/byte-link.ts";
import { FRAME_HEADER_BYTES } from "./frames.ts";

const SLAB_BYTES = 64 * 1024;
/** Payloads from here on are handed to the link as they are; smaller ones are cheaper to copy. */
const COPY_LIMIT_BYTES = 4 * 1024;

/*
 * Collects frames and gives them to the link once per turn of the event loop, in one write:
 *
 *   slab   | written already | frame frame frame | free        small frames are copied one after another
 *                            ^ start             ^ at
 *   parts  [ piece of a slab, large payload, piece of a slab ]
 *
 * setImmediate, because everything that timers, sockets and promises of this turn cause has been queued by then, and
 * because the event loop does not sleep while an immediate waits: nothing is ever held back for a later turn.
 */
export class FrameWriter {
  readonly #link: ByteLink;
  #slab: Buffer = emptySlab;
  #start = 0;
  #at = 0;
  #parts: Uint8Array[] = [];
  #queuedBytes = 0;
  #scheduled: NodeJS.Immediate | undefined;
  #closed = false;

  constructor(link: ByteLink) {
    this.#link = link;
  }

  /** Bytes that have not left. */
  get waitingBytes(): number {
    return this.#queuedBytes + this.#link.waitingBytes;
  }

  /** Queues one frame; `head` and `payload` together are its payload. */
  frame(type: number, stream: number, payload: Uint8Array, head: Uint8Array = noBytes): void {
    if (this.#closed) return;
    const size = head.length + payload.length;
    const copied = FRAME_HEADER_BYTES + head.length + (payload.length < COPY_LIMIT_BYTES ? payload.length : 0);
    if (this.#slab.length - this.#at < copied) {
      this.#cut();
      this.#slab = Buffer.allocUnsafeSlow(Math.max(SLAB_BYTES, copied));
      this.#start = 0;
      this.#at = 0;
    }
    const slab = this.#slab;
    let at = this.#at;
    slab[at] = size;
    slab[at + 1] = size >>> 8;
    slab[at + 2] = size >>> 16;
    slab[at + 3] = size >>> 24;
    slab[at + 4] = type;
    slab[at + 5] = stream;
    slab[at + 6] = stream >>> 8;
    slab[at + 7] = stream >>> 16;
    slab[at + 8] = stream >>> 24;
    at += FRAME_HEADER_BYTES;
    if (head.length > 0) {
      slab.set(head, at);
      at += head.length;
    }
    if (payload.length < COPY_LIMIT_BYTES) {
      // A loop beats TypedArray.set for what a token needs.
      if (payload.length <= 32) for (let i = 0; i < payload.length; i++) slab[at + i] = payload[i]!;
      else slab.set(payload, at);
      this.#at = at + payload.length;
    } else {
      this.#at = at;
      this.#cut();
      this.#parts.push(payload);
    }
    this.#queuedBytes += FRAME_HEADER_BYTES + size;
    this.#scheduled ??= setImmediate(this.flush);
  }

  /** Gives everything that is queued to the link now. */
  readonly flush = (): void => {
    if (this.#scheduled) clearImmediate(this.#scheduled);
    this.#scheduled = undefined;
    this.#cut();
    const parts = this.#parts;
    if (parts.length === 0) return;
    this.#parts = [];
    this.#queuedBytes = 0;
    if (!this.#closed) this.#link.write(parts);
  };

  /** Forgets what is queued. */
  close(): void {
    this.#closed = true;
    if (this.#scheduled) clearImmediate(this.#scheduled);
    this.#scheduled = undefined;
    this.#parts = [];
    this.#queuedBytes = 0;
    this.#slab = emptySlab;
    this.#start = 0;
    this.#at = 0;
  }

  #cut(): void {
    if (this.#at > this.#start) this.#parts.push(this.#slab.subarray(this.#start, this.#at));
    this.#start = this.#at;
  }
}

const noBytes = new Uint8Array(0);
const emptySlab = Buffer.alloc(0);

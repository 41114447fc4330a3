import type { EventFrame } from "./frame.ts";

export interface RingLimits {
  readonly maxEvents: number;
  readonly maxBytes: number;
}

/**
 * The latest frames of one origin, without a gap between them. Appending evicts the oldest ones over the limits, but
 * never the newest.
 */
export class ReplayRing {
  readonly #limits: RingLimits;
  /** Those from `#head` on count; the places before are empty. */
  #frames: (EventFrame | undefined)[] = [];
  #head = 0;
  #next = 0;
  #bytes = 0;

  constructor(limits: RingLimits) {
    this.#limits = limits;
  }

  /** Sequence of the oldest event kept; equals `next` when there is none. */
  get first(): number {
    return this.#frames[this.#head]?.first ?? this.#next;
  }

  /** Sequence that the next event will have. */
  get next(): number {
    return this.#next;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** `frame.first` must be `next`, and `frame.count` at least 1. */
  append(frame: EventFrame): void {
    this.#frames.push(frame);
    this.#next = frame.first + frame.count;
    this.#bytes += frame.bytes.length;
    const { maxEvents, maxBytes } = this.#limits;
    while (this.#next - this.first > maxEvents || this.#bytes > maxBytes) {
      if (this.#head === this.#frames.length - 1) break;
      this.#bytes -= this.#frames[this.#head]!.bytes.length;
      this.#frames[this.#head++] = undefined;
    }
    if (this.#head > 1024 && this.#head * 2 > this.#frames.length) {
      this.#frames = this.#frames.slice(this.#head);
      this.#head = 0;
    }
  }

  /** The frame that covers `sequence`, or the oldest one when that is gone; undefined from `next` on. */
  frameAt(sequence: number): EventFrame | undefined {
    if (sequence >= this.#next) return undefined;
    let low = this.#head;
    let high = this.#frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#frames[middle]!.first <= sequence) low = middle;
      else high = middle - 1;
    }
    return this.#frames[low];
  }
}

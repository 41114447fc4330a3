import type { EventFrame } from "./frame.ts";

/** No queue of a subscription takes more than this share of its budget, so that one publisher leaves room for others. */
const LARGEST_SHARE = 1 / 4;

/** Bounds what all queues of one subscription hold together. */
export class QueueBudget {
  readonly maxFrames: number;
  readonly maxBytes: number;
  frames = 0;
  bytes = 0;

  constructor(maxFrames: number, maxBytes: number) {
    this.maxFrames = maxFrames;
    this.maxBytes = maxBytes;
  }
}

/** Frames of one publisher that have arrived and wait. Over the budget it loses its oldest ones: a replay begins there. */
export class FrameQueue {
  readonly #budget: QueueBudget;
  #frames: EventFrame[] = [];
  #head = 0;
  #bytes = 0;

  constructor(budget: QueueBudget) {
    this.#budget = budget;
  }

  get length(): number {
    return this.#frames.length - this.#head;
  }

  /** Returns how many frames had to go for it, perhaps the new one itself. */
  push(frame: EventFrame): number {
    this.#frames.push(frame);
    this.#bytes += frame.bytes.length;
    this.#budget.frames++;
    this.#budget.bytes += frame.bytes.length;
    let gone = 0;
    for (; this.#isOverBudget() && this.length > 0; gone++) this.shift();
    return gone;
  }

  peek(): EventFrame | undefined {
    return this.#frames[this.#head];
  }

  shift(): void {
    const frame = this.peek();
    if (!frame) return;
    this.#head++;
    this.#bytes -= frame.bytes.length;
    this.#budget.frames--;
    this.#budget.bytes -= frame.bytes.length;
    // The places of frames that left are given up in bulk: at least half of the array is empty then.
    if (this.#head * 2 >= this.#frames.length) {
      this.#frames = this.#frames.slice(this.#head);
      this.#head = 0;
    }
  }

  clear(): void {
    this.#budget.frames -= this.length;
    this.#budget.bytes -= this.#bytes;
    this.#frames = [];
    this.#head = 0;
    this.#bytes = 0;
  }

  #isOverBudget(): boolean {
    const { frames, bytes, maxFrames, maxBytes } = this.#budget;
    return (
      frames > maxFrames ||
      bytes > maxBytes ||
      this.length > Math.ceil(maxFrames * LARGEST_SHARE) ||
      this.#bytes > Math.ceil(maxBytes * LARGEST_SHARE)
    );
  }
}

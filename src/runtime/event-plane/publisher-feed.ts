import { setTimeout as pause } from "node:timers/promises";
import { type EventFrame, framePayloads, parseFrame } from "./frame.ts";
import { FrameQueue, type QueueBudget } from "./frame-queue.ts";
import { type EventListener, type EventOrigin, originName, type ResetReason } from "./plane.ts";
import type { ReplaySource } from "./replay.ts";

/** Failed replays in a row, without any progress, after which the missing events count as lost. */
const MAX_FAILURES = 3;

/** Where a subscription begins with a publisher that is new to it: with its next event, or with what its ring still has. */
export type StartAt = "now" | "ring";

/** What a feed needs from its subscription, and what it counts there. */
export interface FeedOwner {
  readonly listener: EventListener;
  readonly replaySource: ReplaySource;
  readonly budget: QueueBudget;
  readonly counters: FeedCounters;
  /** Between failed replays. */
  readonly retryDelayMs: number;
  /** The feed may have something to do: call `step` soon. */
  wake(feed: PublisherFeed): void;
}

export interface FeedCounters {
  frames: number;
  events: number;
  duplicateFrames: number;
  malformedFrames: number;
  foreignFrames: number;
  /** Frames of events that the publisher, asked, does not have: not its own. */
  untrueFrames: number;
  /** Frames that found no room. */
  overflowFrames: number;
  gaps: number;
  replays: number;
  failedReplays: number;
  replayedEvents: number;
  lostResets: number;
}

/**
 * One epoch of one publisher as a subscriber sees it: puts its frames into order and closes gaps.
 *
 *   receive -> FrameQueue -> step -+- next in line ---------> onEvents
 *                                  +- known already --------> nothing
 *                                  +- gap -> the queue waits for a replay, which goes straight to onEvents
 *
 * Exactly-once and order rest on one number, the sequence that is next, which only grows.
 */
export class PublisherFeed {
  readonly origin: EventOrigin;
  /** Of the publisher's process, for replays. */
  replayAddress: string;
  readonly #name: Uint8Array;
  readonly #owner: FeedOwner;
  readonly #queue: FrameQueue;
  readonly #closing = new AbortController();
  /** Undefined until the first frame tells where the publisher is. */
  #next: number | undefined;
  /** What the listener has to hear before the next events. */
  #reset: ResetReason | undefined = "new_epoch";
  /** The next gap is not worth a replay: it was tried. */
  #givenUp = false;
  #replaying = false;

  constructor(origin: EventOrigin, replayAddress: string, start: StartAt, owner: FeedOwner) {
    this.origin = origin;
    this.replayAddress = replayAddress;
    this.#name = Buffer.from(originName(origin));
    this.#owner = owner;
    this.#queue = new FrameQueue(owner.budget);
    if (start === "ring") {
      this.#next = 0;
      void this.#closeGap(undefined);
    }
  }

  /** The listener knows of this origin. */
  get isTold(): boolean {
    return this.#reset !== "new_epoch";
  }

  /** Whatever a transport delivered. */
  receive(bytes: Uint8Array): void {
    const frame = this.#check(bytes);
    if (!frame) return;
    this.#owner.counters.overflowFrames += this.#queue.push(frame);
    this.#owner.wake(this);
  }

  /** Deals with one waiting frame. False = nothing to do before the next `wake`. */
  step(): boolean {
    const frame = this.#queue.peek();
    if (!frame || this.#replaying) return false;
    this.#next ??= frame.first;
    if (frame.first > this.#next && !this.#givenUp) {
      void this.#closeGap(frame);
      return false;
    }
    this.#queue.shift();
    this.#deliver(frame);
    return true;
  }

  /** The listener hears nothing afterwards, also when it is in the middle of a replay. Idempotent. */
  close(): void {
    this.#closing.abort();
    this.#queue.clear();
  }

  #check(bytes: Uint8Array): EventFrame | undefined {
    const { counters } = this.#owner;
    counters.frames++;
    const frame = parseFrame(bytes, this.#name);
    if (frame === "malformed") counters.malformedFrames++;
    else if (frame === "foreign") counters.foreignFrames++;
    else return frame;
    return undefined;
  }

  /** Tells the listener what is new in the frame. A gap in front of it is told as a loss. */
  #deliver(frame: EventFrame): void {
    const { listener, counters } = this.#owner;
    let next = this.#next ?? frame.first;
    if (frame.first > next) {
      next = frame.first;
      this.#reset ??= "lost";
      this.#givenUp = false;
    }
    this.#next = next;
    if (this.#reset) {
      const reason = this.#reset;
      this.#reset = undefined;
      if (reason === "lost") counters.lostResets++;
      listener.onReset(this.origin, reason, next);
    }
    const end = frame.first + frame.count;
    if (end <= next) {
      if (frame.count > 0) counters.duplicateFrames++;
      return;
    }
    if (this.#closing.signal.aborted) return; // by the listener, in `onReset`
    this.#givenUp = false;
    this.#next = end;
    counters.events += end - next;
    listener.onEvents(this.origin, next, framePayloads(frame, next - frame.first));
  }

  /** Replays from `#next` until there is nothing more to be had. `ahead`: the frame behind the gap, first in the queue. */
  async #closeGap(ahead: EventFrame | undefined): Promise<void> {
    const { counters, retryDelayMs, replaySource } = this.#owner;
    const { signal } = this.#closing;
    this.#replaying = true;
    if (ahead) counters.gaps++;
    let failures = 0;
    let before = this.#next!;
    for (;;) {
      before = this.#next!;
      counters.replays++;
      const request = { address: this.replayAddress, origin: this.origin, from: before };
      const failed = await replaySource
        .replay(request, (bytes) => this.#onReplayed(bytes), signal)
        .then(
          () => false,
          () => true,
        );
      if (signal.aborted) return;
      if (!failed) break;
      counters.failedReplays++;
      failures = this.#next! > before ? 1 : failures + 1;
      if (failures === MAX_FAILURES) break;
      await pause(retryDelayMs * failures, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
    }
    this.#givenUp = failures === MAX_FAILURES;
    if (!this.#givenUp && ahead && this.#next === before && this.#queue.peek() === ahead) {
      // Believing the frame would turn all that the publisher really sends into something long known.
      counters.untrueFrames++;
      this.#queue.shift();
    }
    this.#replaying = false;
    this.#owner.wake(this);
  }

  #onReplayed(bytes: Uint8Array): void {
    if (this.#closing.signal.aborted) return;
    const frame = this.#check(bytes);
    if (!frame) return;
    const { counters } = this.#owner;
    const before = counters.events;
    this.#deliver(frame);
    counters.replayedEvents += counters.events - before;
  }
}

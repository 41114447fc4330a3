import { instanceKey } from "../../protocol/instance.ts";
import type { Logger } from "../telemetry/log.ts";
import { QueueBudget } from "./frame-queue.ts";
import type { EventInlet, EventListener, EventOrigin, EventTransport } from "./plane.ts";
import { type FeedCounters, type FeedOwner, PublisherFeed, type StartAt } from "./publisher-feed.ts";
import type { ReplaySource } from "./replay.ts";

export interface SubscriptionOptions {
  readonly transport: EventTransport;
  readonly replaySource: ReplaySource;
  readonly listener: EventListener;
  /** Default `now`. */
  readonly start?: StartAt;
  /** Bounds of the frames of all publishers that wait here. Default 16,384 frames, 64 MiB. */
  readonly maxQueuedFrames?: number;
  readonly maxQueuedBytes?: number;
  /** Rest after a failed replay. Default 200 ms. */
  readonly retryDelayMs?: number;
  readonly logger?: Logger;
}

/** A publisher as discovery knows it. */
export interface KnownPublisher {
  readonly origin: EventOrigin;
  /** On the event plane. */
  readonly address: string;
  /** Where replays are asked for. */
  readonly replayAddress: string;
}

export interface SubscriptionStats extends Readonly<FeedCounters> {
  readonly publishers: number;
  readonly queuedFrames: number;
  readonly queuedBytes: number;
}

/** Frames of one publisher that are dealt with before it is another one's turn. */
const FRAMES_PER_STEP = 8;
/** Frames per turn of the event loop: a flood of events leaves room for everything else. */
const FRAMES_PER_TURN = 64;

interface Connected {
  readonly known: KnownPublisher;
  readonly feed: PublisherFeed;
  readonly inlet: EventInlet | undefined;
}

/** The events of one topic from a set of publishers, which its owner keeps up to date. */
export class EventSubscription implements FeedOwner {
  readonly listener: EventListener;
  readonly replaySource: ReplaySource;
  readonly budget: QueueBudget;
  readonly retryDelayMs: number;
  readonly counters: FeedCounters = {
    frames: 0,
    events: 0,
    duplicateFrames: 0,
    malformedFrames: 0,
    foreignFrames: 0,
    untrueFrames: 0,
    overflowFrames: 0,
    gaps: 0,
    replays: 0,
    failedReplays: 0,
    replayedEvents: 0,
    lostResets: 0,
  };
  readonly #transport: EventTransport;
  readonly #start: StartAt;
  readonly #logger: Logger | undefined;
  readonly #publishers = new Map<string, Connected>();
  /** Feeds that may have something to do. */
  readonly #awake = new Set<PublisherFeed>();
  #turn: NodeJS.Immediate | undefined;
  #closed = false;

  constructor(options: SubscriptionOptions) {
    this.listener = options.listener;
    this.replaySource = options.replaySource;
    this.budget = new QueueBudget(options.maxQueuedFrames ?? 16_384, options.maxQueuedBytes ?? 64 * 1024 * 1024);
    this.retryDelayMs = options.retryDelayMs ?? 200;
    this.#transport = options.transport;
    this.#start = options.start ?? "now";
    this.#logger = options.logger;
  }

  /**
   * A new publisher, or a new version of a known one: another address = connect there and go on, another epoch = the old
   * one is gone.
   */
  upsert(known: KnownPublisher): void {
    if (this.#closed) return;
    const key = instanceKey(known.origin);
    const present = this.#publishers.get(key);
    if (present?.known.origin.epoch === known.origin.epoch) {
      present.feed.replayAddress = known.replayAddress;
      if (present.known.address === known.address) return;
      present.inlet?.close();
      this.#publishers.set(key, { known, feed: present.feed, inlet: this.#connect(known, present.feed) });
      return;
    }
    this.remove(known.origin);
    const feed = new PublisherFeed(known.origin, known.replayAddress, this.#start, this);
    this.#publishers.set(key, { known, feed, inlet: this.#connect(known, feed) });
  }

  /** Whatever its epoch. */
  remove(origin: Omit<EventOrigin, "epoch" | "topic">): void {
    const key = instanceKey(origin);
    const present = this.#publishers.get(key);
    if (!present) return;
    this.#publishers.delete(key);
    this.#leave(present);
    if (present.feed.isTold) this.listener.onGone(present.feed.origin);
  }

  stats(): SubscriptionStats {
    return {
      ...this.counters,
      publishers: this.#publishers.size,
      queuedFrames: this.budget.frames,
      queuedBytes: this.budget.bytes,
    };
  }

  /** The listener hears nothing afterwards. Idempotent. */
  close(): void {
    this.#closed = true;
    clearImmediate(this.#turn);
    for (const connected of this.#publishers.values()) this.#leave(connected);
    this.#publishers.clear();
  }

  /** @internal */
  wake(feed: PublisherFeed): void {
    this.#awake.add(feed);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#closed) return;
    this.#turn ??= setImmediate(() => {
      this.#turn = undefined;
      this.#work();
      if (this.#awake.size > 0) this.#schedule();
    });
  }

  /** One turn: the feeds in their order of waking, a few frames each. */
  #work(): void {
    let frames = 0;
    for (const feed of this.#awake) {
      if (frames >= FRAMES_PER_TURN) return;
      this.#awake.delete(feed);
      let hasMore = true;
      for (let i = 0; hasMore && i < FRAMES_PER_STEP; i++) hasMore = feed.step();
      frames += FRAMES_PER_STEP;
      if (hasMore) this.#awake.add(feed); // behind the others
    }
  }

  #connect({ origin, address }: KnownPublisher, feed: PublisherFeed): EventInlet | undefined {
    try {
      return this.#transport.connect(address, (frame) => feed.receive(frame));
    } catch (err) {
      // Known to discovery, but not on this plane: it may come back with another address.
      this.#logger?.warn({ err, origin }, "cannot listen to the events of a publisher");
      return undefined;
    }
  }

  #leave({ feed, inlet }: Connected): void {
    inlet?.close();
    feed.close();
    this.#awake.delete(feed);
  }
}

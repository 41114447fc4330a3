import { type Clock, systemClock } from "../../protocol/clock.ts";

/*
 * One coarse timer for many deadlines. A deadline of n ticks hangs in slot n mod 512, a ring of doubly linked lists:
 *
 *   slot 0 <-> a <-> b <-> (slot 0)
 *   slot 1 <-> (slot 1)
 *   slot 2 <-> c <-> (slot 2)         to schedule and to cancel touches two neighbours, whatever the number of entries
 *
 * A tick visits one slot; entries of a later round stay where they are.
 */

const SLOTS = 512;

export interface TimerWheelOptions {
  /** Resolution: an entry runs at most this much late and never early. */
  readonly tickMs?: number;
  readonly clock?: Clock;
  /** No timer of its own: the owner calls {@link TimerWheel.advance} (tests, virtual clocks). */
  readonly manual?: boolean;
}

/** A scheduled callback. */
export interface Deadline {
  /** The callback will not run. Idempotent, also after it ran. */
  cancel(): void;
}

/**
 * Deadlines for many requests at the price of one timer. It does not keep the process alive, and its timer runs only
 * while something is scheduled. Callbacks must not throw.
 */
export class TimerWheel {
  readonly #tickMs: number;
  readonly #clock: Clock;
  readonly #manual: boolean;
  readonly #slots: Entry[] = Array.from({ length: SLOTS }, () => new Entry(undefined, 0));
  readonly #origin: number;
  #doneTick = 0;
  #size = 0;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: TimerWheelOptions = {}) {
    this.#tickMs = options.tickMs ?? 100;
    this.#clock = options.clock ?? systemClock;
    this.#manual = options.manual ?? false;
    this.#origin = this.#clock.now();
  }

  /** Entries that wait. */
  get size(): number {
    return this.#size;
  }

  /** Runs `callback` once, `delayMs` from now or up to one tick later. After `close` nothing is scheduled. */
  schedule(delayMs: number, callback: () => void): Deadline {
    if (this.#closed) return noDeadline;
    const now = this.#clock.now() - this.#origin;
    if (this.#size === 0) this.#doneTick = Math.floor(now / this.#tickMs);
    const dueTick = Math.max(Math.ceil((now + Math.max(delayMs, 0)) / this.#tickMs), this.#doneTick + 1);
    const entry = new Entry(callback, dueTick, this);
    entry.insertBefore(this.#slots[dueTick % SLOTS]!);
    this.#size++;
    this.#arm();
    return entry;
  }

  /** Runs everything that is due. */
  advance(): void {
    const nowTick = Math.floor((this.#clock.now() - this.#origin) / this.#tickMs);
    // After a long pause every slot is visited once, not once per missed tick.
    const visits = Math.min(nowTick - this.#doneTick, SLOTS);
    const firstTick = nowTick - visits + 1;
    this.#doneTick = nowTick;
    for (let tick = firstTick; tick <= nowTick; tick++) this.#visit(this.#slots[tick % SLOTS]!, nowTick);
  }

  /** Forgets every entry and stops the timer. Idempotent. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const slot of this.#slots) while (slot.next !== slot) slot.next.cancel();
  }

  /** @internal Called by an entry that leaves its list. */
  left(): void {
    this.#size--;
    if (this.#size === 0 && this.#timer) {
      clearTimeout(this.#timer);
      this.#timer = undefined;
    }
  }

  #visit(slot: Entry, nowTick: number): void {
    // Due entries are moved out first: a callback may schedule into or cancel from the list that is being walked.
    let due: Entry[] | undefined;
    for (let entry = slot.next; entry !== slot; entry = entry.next) {
      if (entry.dueTick <= nowTick) {
        due ??= [];
        due.push(entry);
      }
    }
    if (!due) return;
    for (const entry of due) entry.run();
  }

  #arm(): void {
    if (this.#manual || this.#timer || this.#size === 0 || this.#closed) return;
    const elapsed = this.#clock.now() - this.#origin;
    this.#timer = setTimeout(this.#onTimer, this.#tickMs - (elapsed % this.#tickMs) + 1);
    this.#timer.unref();
  }

  readonly #onTimer = (): void => {
    this.#timer = undefined;
    try {
      this.advance();
    } finally {
      this.#arm();
    }
  };
}

class Entry implements Deadline {
  readonly dueTick: number;
  next: Entry = this;
  #previous: Entry = this;
  #callback: (() => void) | undefined;
  readonly #wheel: TimerWheel | undefined;

  constructor(callback: (() => void) | undefined, dueTick: number, wheel?: TimerWheel) {
    this.#callback = callback;
    this.dueTick = dueTick;
    this.#wheel = wheel;
  }

  insertBefore(slot: Entry): void {
    this.next = slot;
    this.#previous = slot.#previous;
    slot.#previous.next = this;
    slot.#previous = this;
  }

  cancel(): void {
    if (!this.#callback) return;
    this.#callback = undefined;
    this.#previous.next = this.next;
    this.next.#previous = this.#previous;
    this.#wheel?.left();
  }

  run(): void {
    const callback = this.#callback;
    this.cancel();
    callback?.();
  }
}

const noDeadline: Deadline = { cancel() {} };

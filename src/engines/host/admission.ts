import { StatorError } from "../../protocol/errors.ts";
import type { Deadline, TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";

export interface AdmissionLimits {
  /** Requests that run at once. */
  readonly maxRunning: number;
  /** Requests that may wait for a slot. */
  readonly maxQueued: number;
  readonly queueTimeoutMs: number;
}

/** A slot, or a place in the queue for one. */
export interface Ticket {
  /** 0 = it has its slot; n = n-th in the queue when it came. */
  readonly queuePosition: number;
  /** Resolves with the slot; rejects on the queue timeout (`queue_timeout`) or with the reason of the signal. */
  readonly started: Promise<void>;
  /** Gives slot or place back. Idempotent; the holder calls it in `finally`. */
  leave(): void;
}

/** Weight of the newest duration in the running mean. */
const MEAN_WEIGHT = 0.1;
const MAX_RETRY_AFTER_SECONDS = 60;

/** Slots for running requests and a bounded first-in-first-out queue before them. */
export class Admission {
  readonly #limits: AdmissionLimits;
  readonly #wheel: TimerWheel;
  readonly #queue: Waiter[] = [];
  #running = 0;
  #meanDurationMs = 0;

  constructor(limits: AdmissionLimits, wheel: TimerWheel) {
    this.#limits = limits;
    this.#wheel = wheel;
  }

  get running(): number {
    return this.#running;
  }

  get queued(): number {
    return this.#queue.length;
  }

  /** Throws `overloaded` when there is neither a slot nor a place. */
  enter(signal: AbortSignal): Ticket {
    signal.throwIfAborted();
    if (this.#running < this.#limits.maxRunning) {
      this.#running++;
      return { queuePosition: 0, started: Promise.resolve(), leave: this.#slot() };
    }
    if (this.#queue.length >= this.#limits.maxQueued) {
      throw new StatorError(
        "overloaded",
        `The worker runs ${this.#running} requests and ${this.#queue.length} wait; it takes no more.`,
        { retryAfterSeconds: this.#retryAfterSeconds() },
      );
    }
    const waiter = new Waiter(signal, (it) => this.#queue.splice(this.#queue.indexOf(it), 1));
    this.#queue.push(waiter);
    const { queueTimeoutMs } = this.#limits;
    waiter.deadline = this.#wheel.schedule(queueTimeoutMs, () =>
      waiter.fail(new StatorError("queue_timeout", `The request waited ${queueTimeoutMs} ms for a slot.`)),
    );
    return { queuePosition: this.#queue.length, started: waiter.started, leave: () => waiter.leave() };
  }

  /** How to give a slot back, which goes to the first in the queue. */
  #slot(): () => void {
    const since = performance.now();
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      this.#running--;
      const durationMs = performance.now() - since;
      this.#meanDurationMs += (durationMs - this.#meanDurationMs) * (this.#meanDurationMs === 0 ? 1 : MEAN_WEIGHT);
      const next = this.#queue[0];
      if (!next || this.#running >= this.#limits.maxRunning) return;
      this.#running++;
      next.start(this.#slot());
    };
  }

  /** When the queue should have room again, from how long requests take. */
  #retryAfterSeconds(): number {
    const waves = (this.#queue.length + 1) / this.#limits.maxRunning;
    return Math.min(Math.max(Math.ceil((waves * this.#meanDurationMs) / 1000), 1), MAX_RETRY_AFTER_SECONDS);
  }
}

class Waiter {
  readonly started: Promise<void>;
  deadline: Deadline | undefined;
  readonly #signal: AbortSignal;
  readonly #leaveQueue: (waiter: Waiter) => void;
  #resolve!: () => void;
  #reject!: (reason: unknown) => void;
  #waiting = true;
  #giveBack: (() => void) | undefined;

  constructor(signal: AbortSignal, leaveQueue: (waiter: Waiter) => void) {
    this.#signal = signal;
    this.#leaveQueue = leaveQueue;
    this.started = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.started.catch(() => {}); // the holder may leave without ever awaiting
    signal.addEventListener("abort", this.#onAbort);
  }

  start(giveBack: () => void): void {
    this.#giveBack = giveBack;
    this.#stopWaiting();
    this.#resolve();
  }

  fail(reason: unknown): void {
    if (!this.#waiting) return;
    this.#stopWaiting();
    this.#reject(reason);
  }

  leave(): void {
    if (this.#waiting) this.#stopWaiting();
    this.#giveBack?.();
  }

  readonly #onAbort = (): void => this.fail(this.#signal.reason);

  #stopWaiting(): void {
    this.#waiting = false;
    this.deadline?.cancel();
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.#leaveQueue(this);
  }
}

import type { TraceRequest } from "../traces/trace-request.ts";
import { type EventQueue, phases } from "./event-queue.ts";

const none = -1;

/**
 * When requests are sent. Each request is a source of the event queue, by its number.
 *
 *     by the trace's times   a session's first turn at its arrival
 *     by concurrency         so many sessions at once, in order; a session keeps its place between its turns
 *     in both                a further turn when the one before has ended, and its delay is over
 *
 * A request without a session is a session of one turn. A rejected turn ends like an answered one.
 */
export class ClientLoop {
  readonly #requests: readonly TraceRequest[];
  readonly #queue: EventQueue;
  /** The session's next turn. */
  readonly #next: Int32Array;
  readonly #starts: readonly number[];
  /** Of `#starts`, those that have their place in the queue. */
  #started = 0;

  constructor(requests: readonly TraceRequest[], queue: EventQueue, concurrency: number | undefined) {
    this.#requests = requests;
    this.#queue = queue;
    this.#next = new Int32Array(requests.length).fill(none);
    const last = new Map<string, number>();
    const starts: number[] = [];
    for (const [id, { session }] of requests.entries()) {
      const before = session === undefined ? undefined : last.get(session);
      if (before === undefined) starts.push(id);
      else this.#next[before] = id;
      if (session !== undefined) last.set(session, id);
    }
    this.#starts = starts;
    if (concurrency === undefined) {
      for (const id of starts) queue.set(id, requests[id]!.arrivalMs, phases.arrival);
      this.#started = starts.length;
    } else {
      for (let place = 0; place < concurrency && place < starts.length; place++) this.#startNext(0);
    }
  }

  ended(id: number, nowMs: number): void {
    const next = this.#next[id]!;
    if (next === none) this.#startNext(nowMs);
    else this.#queue.set(next, nowMs + (this.#requests[next]!.delayMs ?? 0), phases.arrival);
  }

  #startNext(nowMs: number): void {
    const start = this.#starts[this.#started];
    if (start === undefined) return;
    this.#started += 1;
    this.#queue.set(start, nowMs, phases.arrival);
  }
}

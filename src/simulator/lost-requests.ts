import type { OnEnd } from "./fleet.ts";
import { outcomes, type RequestLog } from "./request-log.ts";

/** Requests whose worker was lost: they go on elsewhere so often and no oftener, and wait while nobody is there. */
export class LostRequests {
  readonly #log: RequestLog;
  readonly #limit: number;
  readonly #onEnd: OnEnd;
  #waiting: number[] = [];

  /** `limit`: moves of one request. */
  constructor(log: RequestLog, limit: number, onEnd: OnEnd) {
    this.#log = log;
    this.#limit = limit;
    this.#onEnd = onEnd;
  }

  /** Nothing of them is on any worker or booked any more. Who has moved too often fails now. */
  add(ids: readonly number[], nowMs: number): void {
    for (const id of ids) {
      if (this.#log.migrations[id]! >= this.#limit) {
        this.#onEnd(id, outcomes.failed, nowMs);
        continue;
      }
      this.#log.migrations[id]! += 1;
      this.#waiting.push(id);
    }
  }

  /** Gives each to `place`; those that it does not place, because no worker is there, wait on. */
  placeAll(place: (id: number) => boolean): void {
    if (this.#waiting.length > 0) this.#waiting = this.#waiting.filter((id) => !place(id));
  }
}

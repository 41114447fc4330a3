import type { EngineLoads } from "../mocker/engine.ts";
import type { WorkerTally } from "./worker-pool.ts";

/** What a timeline looks at: counts that only grow, and loads as they are. */
export interface Observed {
  readonly tallies: readonly WorkerTally[];
  /** Of each worker, in the order of the tallies. */
  loads(): readonly EngineLoads[];
}

/** The state at one moment. */
export interface Moment {
  readonly atMs: number;
  /** Gaps between tokens so far: those of the window before are `gaps[before.gaps .. this.gaps]` of the request log. */
  readonly gaps: number;
  /** Tokens so far, of all workers. */
  readonly outputTokens: number;
  readonly prefillTokens: number;
  readonly cachedTokens: number;
  /** Requests in each worker, running and waiting together. */
  readonly requests: Float64Array;
  /** Requests that wait in some worker. */
  readonly waiting: number;
}

const MOST_MOMENTS = 200;
const FIRST_WIDTH_MS = 100;

/**
 * A replay's state at equal distances of virtual time. How long a run takes is known at its end only, so the distance
 * doubles, and every other moment goes, whenever there are too many: 100 to 200 of them in the end. Counts are
 * cumulative, so that nothing is lost with a moment.
 *
 * Costs a comparison per event; nothing per token.
 */
export class Timeline {
  #widthMs = FIRST_WIDTH_MS;
  #moments: Moment[] = [];
  #beganMs = Number.NaN;
  #nextMs = Number.NEGATIVE_INFINITY;

  get widthMs(): number {
    return this.#widthMs;
  }

  /** The first is the begin of the run, the last one its end. */
  get moments(): readonly Moment[] {
    return this.#moments;
  }

  /** Before whatever happens at `nowMs`: takes down the moments that have passed. */
  advance(nowMs: number, gaps: number, observed: Observed): void {
    if (nowMs < this.#nextMs) return;
    if (Number.isNaN(this.#beganMs)) {
      this.#beganMs = nowMs;
      this.#add(nowMs, gaps, observed);
      this.#nextMs = nowMs + this.#widthMs;
      return;
    }
    while (this.#nextMs <= nowMs) {
      this.#add(this.#nextMs, gaps, observed);
      if (this.#moments.length > MOST_MOMENTS) {
        this.#moments = this.#moments.filter((_, index) => index % 2 === 0);
        this.#widthMs *= 2;
      }
      this.#nextMs = this.#beganMs + this.#moments.length * this.#widthMs;
    }
  }

  /** After the last event. A last window of less than half the width belongs to the one before. */
  end(nowMs: number, gaps: number, observed: Observed): void {
    const moments = this.#moments;
    if (moments.length > 1 && nowMs - moments.at(-1)!.atMs < this.#widthMs / 2) moments.pop();
    if (moments.length > 0) this.#add(nowMs, gaps, observed);
  }

  #add(atMs: number, gaps: number, observed: Observed): void {
    const moment = { atMs, gaps, outputTokens: 0, prefillTokens: 0, cachedTokens: 0, waiting: 0 };
    for (const tally of observed.tallies) {
      moment.outputTokens += tally.outputTokens;
      moment.prefillTokens += tally.prefillTokens;
      moment.cachedTokens += tally.cachedTokens;
    }
    const all = observed.loads();
    const requests = new Float64Array(all.length);
    for (const [worker, { running, waiting }] of all.entries()) {
      requests[worker] = running + waiting;
      moment.waiting += waiting;
    }
    this.#moments.push({ ...moment, requests });
  }
}

import { randomInt } from "node:crypto";
import { type Random, seededRandom } from "../../protocol/random.ts";

export interface BackoffOptions {
  readonly initialMs: number;
  /** No delay is longer. */
  readonly maxMs: number;
  readonly factor?: number;
  /** Share of each delay that is random, 0..1: a delay d becomes a value in (d * (1 - jitter), d]. */
  readonly jitter?: number;
}

/** Exponential delays with jitter and a cap; the owner does the waiting. */
export class Backoff {
  readonly #options: Required<BackoffOptions>;
  readonly #random: Random;
  #failures = 0;

  constructor(options: BackoffOptions, random: Random = seededRandom(randomInt(2 ** 32))) {
    this.#options = { factor: 2, jitter: 0.5, ...options };
    this.#random = random;
  }

  /** Failures since the last success. */
  get failures(): number {
    return this.#failures;
  }

  /** Notes one more failure and tells how long to wait now. */
  nextDelayMs(): number {
    const { initialMs, maxMs, factor, jitter } = this.#options;
    const full = Math.min(initialMs * factor ** this.#failures, maxMs);
    this.#failures++;
    return full * (1 - jitter * this.#random.next());
  }

  /** A success: the next failure starts from the beginning. */
  reset(): void {
    this.#failures = 0;
  }
}

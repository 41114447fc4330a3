/** What one pass did, and what it left waiting. The names and units of ForwardPassMetrics, version 1, of the reference. */
export interface ForwardPassMetrics {
  /** Counts the passes of the engine from 1. */
  readonly counterId: number;
  readonly dataParallelRank: number;
  /** How long the pass took, in seconds. 0 in the one report after the engine went idle. */
  readonly wallTimeSeconds: number;
  readonly scheduled: {
    readonly prefillRequests: number;
    /** Tokens computed in this pass. */
    readonly prefillTokens: number;
    /** Variance of the whole prompts' lengths. */
    readonly prefillLengthVariance: number;
    /** Tokens read from the cache or from earlier chunks. */
    readonly prefillKvTokens: number;
    readonly decodeRequests: number;
    readonly decodeKvTokens: number;
    readonly decodeKvVariance: number;
  };
  readonly queued: {
    readonly prefillRequests: number;
    /** Without a discount for the cache. */
    readonly prefillTokens: number;
    readonly prefillLengthVariance: number;
    /** Preempted ones that had already given tokens. */
    readonly decodeRequests: number;
    readonly decodeKvTokens: number;
    readonly decodeKvVariance: number;
  };
}

/** Count, sum and variance of a changing set of numbers in constant time. Exact for integers while squares stay safe. */
export class Spread {
  count = 0;
  sum = 0;
  #squares = 0;

  add(value: number): void {
    this.count += 1;
    this.sum += value;
    this.#squares += value * value;
  }

  remove(value: number): void {
    this.count -= 1;
    this.sum -= value;
    this.#squares -= value * value;
  }

  clear(): void {
    this.count = 0;
    this.sum = 0;
    this.#squares = 0;
  }

  get variance(): number {
    if (this.count === 0) return 0;
    const mean = this.sum / this.count;
    return Math.max(0, this.#squares / this.count - mean * mean);
  }
}

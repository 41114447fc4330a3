/**
 * Knows since when native steps are outstanding without any of them ending. A hung llama.cpp cannot be stopped from
 * inside the process; this is how the outside learns of it, by `health`, whether or not a request waits.
 */
export class NativeStepWatch {
  private outstanding = 0;
  private lastProgress = 0;
  private allowanceMs = 0;
  private readonly now: () => number;

  constructor(now: () => number = () => performance.now()) {
    this.now = now;
  }

  /** Watches one native step. `allowanceMs`: what a step that is long by nature may take before it counts as stalled. */
  async step<T>(work: Promise<T>, allowanceMs = 0): Promise<T> {
    if (this.outstanding === 0) this.lastProgress = this.now();
    this.outstanding++;
    this.allowanceMs += allowanceMs;
    try {
      return await work;
    } finally {
      this.outstanding--;
      this.allowanceMs -= allowanceMs;
      this.lastProgress = this.now();
    }
  }

  /** Milliseconds without progress while work is outstanding, beyond what was allowed; 0 when nothing is. */
  get stalledMs(): number {
    return this.outstanding === 0 ? 0 : Math.max(0, this.now() - this.lastProgress - this.allowanceMs);
  }
}

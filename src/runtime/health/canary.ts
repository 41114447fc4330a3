import { StatorError } from "../../protocol/errors.ts";

export interface CanaryOptions {
  /** Probes after so long without work. Default 10 s. */
  readonly idleMs?: number;
  /** A probe that takes longer has failed. Default 3 s. */
  readonly timeoutMs?: number;
  /** Busy for so long without {@link Canary.progress} is a problem, too. Default 60 s. */
  readonly stallMs?: number;
  /** In this process, not over the network. Rejects when it fails. */
  readonly probe: (signal: AbortSignal) => Promise<void>;
  /** After each probe, and after work that succeeded while there was a problem. */
  readonly onResult: (problem: string | undefined) => void;
}

/**
 * Finds out that something does not work any more. What nobody uses just now is probed, before the next user comes. What
 * is busy is not: its work shows how it is, and work that gets nowhere is a problem.
 */
export class Canary {
  readonly #options: CanaryOptions;
  readonly #stop = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #started = false;
  #busy = 0;
  #progressAtMs = 0;
  #problem: string | undefined;

  constructor(options: CanaryOptions) {
    this.#options = options;
  }

  start(): void {
    this.#started = true;
    this.#wait();
  }

  /** Work begins. Returns what to call when it ends, once; `worked` = it showed that all is well. */
  begin(): (worked: boolean) => void {
    this.#busy++;
    if (this.#busy === 1) this.#progressAtMs = performance.now();
    this.#wait();
    return (worked) => {
      this.#busy--;
      if (worked && this.#problem !== undefined) this.#tell(undefined);
      if (this.#busy === 0) this.#wait();
    };
  }

  /** Something that is busy gets on. Cheap: once per message. */
  progress(): void {
    this.#progressAtMs = performance.now();
    if (this.#problem === undefined) return;
    this.#tell(undefined);
    this.#wait();
  }

  stop(): void {
    this.#stop.abort();
    clearTimeout(this.#timer);
  }

  #wait(): void {
    clearTimeout(this.#timer);
    if (!this.#started || this.#stop.signal.aborted) return;
    const { idleMs = 10_000, stallMs = 60_000 } = this.#options;
    this.#timer = (
      this.#busy > 0
        ? setTimeout(() => this.#lookForStall(stallMs), this.#progressAtMs + stallMs - performance.now())
        : setTimeout(() => void this.#probe(), idleMs)
    ).unref();
  }

  #lookForStall(stallMs: number): void {
    const stalled = performance.now() - this.#progressAtMs >= stallMs;
    if (stalled && this.#problem === undefined) {
      this.#tell(`${this.#busy} calls run, and none of them has made progress for ${stallMs} ms.`);
    }
    // From here on it is progress that ends it, or the end of the last call.
    if (!stalled) this.#wait();
  }

  async #probe(): Promise<void> {
    const { probe, timeoutMs = 3_000 } = this.#options;
    const limit = new AbortController();
    const timer = setTimeout(
      () => limit.abort(new StatorError("deadline_exceeded", `The canary took over ${timeoutMs} ms.`)),
      timeoutMs,
    );
    const signal = AbortSignal.any([this.#stop.signal, limit.signal]);
    let problem: string | undefined;
    try {
      // What hangs may not honour the signal either.
      const late = new Promise<never>((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason), { once: true });
      });
      await Promise.race([probe(signal), late]);
    } catch (error) {
      problem = error instanceof Error ? error.message : String(error);
    }
    clearTimeout(timer);
    if (this.#stop.signal.aborted) return;
    // Work that came meanwhile tells more than the probe.
    if (this.#busy === 0) this.#tell(problem);
    this.#wait();
  }

  #tell(problem: string | undefined): void {
    this.#problem = problem;
    this.#options.onResult(problem);
  }
}

import type { Engine } from "../../protocol/engine.ts";
import type { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";

export interface EngineWatchOptions {
  /** Requests run, none waits for its client, and nothing came from the engine for so long. */
  readonly stallTimeoutMs: number;
  readonly healthIntervalMs: number;
  /** After so long without a request the probe is a canary, which runs one token. */
  readonly canaryIdleMs: number;
  /** A probe that takes longer counts as "unhealthy". */
  readonly healthTimeoutMs: number;
  /** Called once. */
  readonly onUnhealthy: (reason: string) => void;
}

/** Looks after the engine: does it answer, and does it get on with what it runs? */
export class EngineWatch {
  readonly #engine: Engine;
  readonly #wheel: TimerWheel;
  readonly #options: EngineWatchOptions;
  /** Of the probe under way. */
  #probe: AbortController | undefined;
  #timers: NodeJS.Timeout[] = [];
  #steps = 0;
  #stepsSeen = 0;
  #stalledSince: number | undefined;
  #active = 0;
  #idleSince = performance.now();
  #told = false;

  constructor(engine: Engine, wheel: TimerWheel, options: EngineWatchOptions) {
    this.#engine = engine;
    this.#wheel = wheel;
    this.#options = options;
  }

  start(): void {
    const { stallTimeoutMs, healthIntervalMs } = this.#options;
    this.#timers = [
      setInterval(() => this.#lookForStall(), Math.max(1, stallTimeoutMs / 10)).unref(),
      setInterval(() => void this.#ask(), healthIntervalMs).unref(),
    ];
  }

  stop(): void {
    for (const timer of this.#timers) clearInterval(timer);
    this.#timers = [];
    this.#told = true;
    this.#probe?.abort();
  }

  /** A request waits for the engine (from its start, and again after it waited for its client). */
  engineBusy(): void {
    this.#active++;
    this.#steps++;
  }

  /** It does not any more. */
  engineFree(): void {
    this.#active--;
    this.#idleSince = performance.now();
  }

  /** Something came from the engine. */
  step(): void {
    this.#steps++;
  }

  #lookForStall(): void {
    const now = performance.now();
    if (this.#active === 0 || this.#steps !== this.#stepsSeen) {
      this.#stepsSeen = this.#steps;
      this.#stalledSince = now;
      return;
    }
    this.#stalledSince ??= now;
    if (now - this.#stalledSince >= this.#options.stallTimeoutMs) {
      this.#tell(
        `${this.#active} requests run, and the engine made no progress for ${this.#options.stallTimeoutMs} ms`,
      );
    }
  }

  async #ask(): Promise<void> {
    if (this.#probe !== undefined) return;
    const probe = new AbortController();
    this.#probe = probe;
    const { healthTimeoutMs, canaryIdleMs } = this.#options;
    const isIdle = this.#active === 0 && performance.now() - this.#idleSince >= canaryIdleMs;
    if (isIdle) this.#idleSince = performance.now();
    const { signal } = probe;
    const deadline = this.#wheel.schedule(healthTimeoutMs, () => probe.abort());
    try {
      // An engine that hangs may not even honour the signal.
      const late = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      const { state, reason } = await Promise.race([this.#engine.health(isIdle ? "canary" : "liveness", signal), late]);
      if (state === "unhealthy") this.#tell(`the engine is unhealthy: ${reason ?? "no reason given"}`);
    } catch (thrown) {
      this.#tell(
        signal.aborted
          ? `the engine did not answer within ${healthTimeoutMs} ms`
          : `the health probe failed: ${String(thrown)}`,
      );
    } finally {
      deadline.cancel();
      this.#probe = undefined;
    }
  }

  #tell(reason: string): void {
    if (this.#told) return;
    this.#told = true;
    this.#options.onUnhealthy(reason);
  }
}

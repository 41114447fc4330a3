import { StatorError } from "../protocol/errors.ts";
import type { DisaggregatedEngine, EngineLoads, FaultControls, SimulatedRequest, StepResult } from "./engine.ts";
import { type EngineConfig, type EngineSettings, engineConfig } from "./engine-config.ts";
import { EngineRank } from "./engine-rank.ts";
import { StepReport } from "./step-report.ts";

const never = Number.POSITIVE_INFINITY;

/** A simulated engine of one or more data-parallel ranks, which share one settings object. */
export function createSimulatedEngine(settings: EngineSettings, nowMs: number, ranks = 1): DisaggregatedEngine {
  return new TimedEngine(engineConfig(settings, ranks), nowMs, ranks);
}

/**
 * Puts ranks on a time line: when passes begin and end, start-up, faults.
 *
 *     starting --(start-up time)--> idle <--> in a pass           frozen: all times move by as much
 *                                    |            |
 *                                    +--- kill ---+--> dead --restart--> starting
 *
 * With several ranks a pass is a barrier: it ends when the slowest rank is done, and idle ranks wait for it.
 */
class TimedEngine implements DisaggregatedEngine {
  readonly faults: FaultControls;
  readonly #config: EngineConfig;
  readonly #report = new StepReport();
  readonly #rankOf = new Map<number, EngineRank>();
  readonly #rankCount: number;
  #ranks: EngineRank[] = [];
  #dead = false;
  #readyAtMs = 0;
  /** When there is something to schedule (out of a pass), or the pass ends. */
  #dueMs = never;
  #passStartMs = 0;
  #inPass = false;
  #idleReported = true;
  #slowdown = 1;
  #droppingEvents = false;
  #frozenUntilMs = Number.NEGATIVE_INFINITY;
  /** Of a frozen pass: what is left of it. */
  #leftMs = 0;

  constructor(config: EngineConfig, nowMs: number, ranks: number) {
    this.#config = config;
    this.#rankCount = ranks;
    this.faults = {
      freeze: (at, untilMs) => this.#freeze(at, untilMs),
      thaw: (at) => this.#thaw(at),
      slowDown: (factor) => {
        this.#slowdown = factor;
      },
      kill: () => this.#kill(),
      restart: (at) => this.#start(at),
      dropKvEvents: (drop) => {
        this.#droppingEvents = drop;
        for (const rank of this.#ranks) rank.dropEvents(drop);
      },
    };
    this.#start(nowMs);
  }

  get inPass(): boolean {
    return this.#inPass;
  }

  get nextWorkAtMs(): number {
    if (this.#dead) return never;
    const due = this.#inPass ? this.#dueMs : Math.max(this.#dueMs, this.#readyAtMs, this.#frozenUntilMs);
    return Math.min(due, this.#nextLoadMs());
  }

  submit(request: SimulatedRequest, nowMs: number): void {
    if (this.#dead) throw new StatorError("worker_lost", "The simulated engine is dead");
    if (this.#rankOf.has(request.id)) {
      throw new StatorError("invalid_value", `Request id ${request.id} is in use`, { param: "id" });
    }
    const rank = this.#chooseRank(request);
    this.#rankOf.set(request.id, rank);
    rank.submit(request);
    this.#wake(nowMs);
  }

  cancel(id: number, nowMs: number): boolean {
    return this.#change(id, nowMs, true, (rank) => rank.cancel(id, nowMs));
  }

  kvArrived(id: number, nowMs: number): boolean {
    return this.#change(id, nowMs, false, (rank) => rank.kvArrived(id));
  }

  releaseHeld(id: number, nowMs: number): boolean {
    return this.#change(id, nowMs, true, (rank) => rank.releaseHeld(id));
  }

  step(nowMs: number): StepResult {
    const report = this.#report;
    report.clear();
    if (this.nextWorkAtMs > nowMs) return report;
    if (this.#nextLoadMs() <= nowMs) {
      for (const rank of this.#ranks) rank.finishLoads(nowMs);
      this.#wake(nowMs);
      return report;
    }
    if (this.#inPass) this.#endPass(nowMs);
    else this.#beginPass(nowMs);
    for (const id of report.rejected) this.#rankOf.delete(id);
    return report;
  }

  loads(): EngineLoads {
    const loads = { running: 0, waiting: 0, waitingTokens: 0, activeBlocks: 0, cachedBlocks: 0, totalBlocks: 0 };
    for (const rank of this.#ranks) {
      loads.running += rank.running;
      loads.waiting += rank.waiting;
      loads.waitingTokens += rank.waitingTokens;
      loads.activeBlocks += rank.pool.active;
      loads.cachedBlocks += rank.pool.cached;
      loads.totalBlocks += rank.pool.total;
    }
    return loads;
  }

  #nextLoadMs(): number {
    let next = never;
    for (const rank of this.#ranks) next = Math.min(next, rank.nextLoadMs);
    return Math.max(next, this.#frozenUntilMs);
  }

  #beginPass(nowMs: number): void {
    let longestMs = 0;
    for (const rank of this.#ranks) longestMs = Math.max(longestMs, rank.begin(this.#report, nowMs));
    if (longestMs > 0) {
      this.#inPass = true;
      this.#idleReported = false;
      this.#passStartMs = nowMs;
      this.#dueMs = nowMs + longestMs * this.#slowdown;
      return;
    }
    this.#dueMs = never;
    if (this.#idleReported) return;
    this.#idleReported = true;
    for (const rank of this.#ranks) this.#report.metrics.push(rank.metrics(0));
  }

  #endPass(nowMs: number): void {
    this.#inPass = false;
    this.#dueMs = nowMs;
    for (const rank of this.#ranks) {
      rank.end(this.#report);
      this.#report.metrics.push(rank.metrics(nowMs - this.#passStartMs));
    }
    for (const id of this.#report.finished) {
      if (!this.#rankOf.get(id)?.holds(id)) this.#rankOf.delete(id);
    }
  }

  #chooseRank(request: SimulatedRequest): EngineRank {
    const asked = request.rank === undefined ? undefined : this.#ranks[request.rank];
    if (asked !== undefined) return asked;
    return this.#ranks.reduce((best, rank) =>
      rank.running + rank.waiting < best.running + best.waiting ? rank : best,
    );
  }

  #change(id: number, nowMs: number, leaves: boolean, change: (rank: EngineRank) => boolean): boolean {
    const rank = this.#rankOf.get(id);
    if (rank === undefined || !change(rank)) return false;
    if (leaves) this.#rankOf.delete(id);
    this.#wake(nowMs);
    return true;
  }

  /** Something changed: a pass that could not begin may be possible now. */
  #wake(nowMs: number): void {
    if (!this.#inPass) this.#dueMs = Math.min(this.#dueMs, nowMs);
  }

  #start(nowMs: number): void {
    this.#dead = false;
    this.#ranks = Array.from({ length: this.#rankCount }, (_, rank) => new EngineRank(this.#config, rank));
    for (const rank of this.#ranks) rank.dropEvents(this.#droppingEvents);
    this.#readyAtMs = nowMs + this.#config.startupMs;
    this.#rankOf.clear();
    this.#inPass = false;
    this.#idleReported = true;
    this.#dueMs = never;
    this.#frozenUntilMs = Number.NEGATIVE_INFINITY;
  }

  #kill(): number[] {
    const lost = [...this.#rankOf.keys()];
    this.#rankOf.clear();
    this.#ranks = [];
    this.#dead = true;
    this.#inPass = false;
    return lost;
  }

  #freeze(nowMs: number, untilMs: number): void {
    if (this.#frozenUntilMs <= nowMs) this.#leftMs = this.#dueMs - nowMs;
    this.#frozenUntilMs = Math.max(untilMs, this.#frozenUntilMs);
    if (this.#inPass) this.#dueMs = this.#frozenUntilMs + this.#leftMs;
  }

  #thaw(nowMs: number): void {
    if (this.#frozenUntilMs <= nowMs) return;
    this.#frozenUntilMs = nowMs;
    if (this.#inPass) this.#dueMs = nowMs + this.#leftMs;
  }
}

import type { EngineLoads, SimulatedRequest, StepResult } from "../mocker/engine.ts";
import { type Outcome, outcomes, type RequestLog } from "./request-log.ts";
import type { WorkerPool, WorkerTally } from "./worker-pool.ts";

/** Simulated workers that serve requests. Its sources in the event queue are numbered from 0 here. */
export interface Fleet {
  readonly tallies: readonly WorkerTally[];
  /** Of each worker, in the order of the tallies. */
  loads(): readonly EngineLoads[];
  submit(request: SimulatedRequest, nowMs: number): void;
  /** The source is due. */
  step(source: number, nowMs: number): void;
}

/** Told when a request has ended, exactly once for each. */
export type OnEnd = (id: number, outcome: Outcome, nowMs: number) => void;

/** Workers that serve whole requests. */
export class AggregatedFleet implements Fleet {
  readonly #pool: WorkerPool;
  readonly #log: RequestLog;
  readonly #onEnd: OnEnd;

  constructor(pool: WorkerPool, log: RequestLog, onEnd: OnEnd) {
    this.#pool = pool;
    this.#log = log;
    this.#onEnd = onEnd;
  }

  get tallies(): readonly WorkerTally[] {
    return this.#pool.tallies;
  }

  loads(): readonly EngineLoads[] {
    return this.#pool.loads();
  }

  submit(request: SimulatedRequest, nowMs: number): void {
    this.#pool.submit(this.#pool.choose(request), request, nowMs);
  }

  step(worker: number, nowMs: number): void {
    const result = this.#pool.step(worker, nowMs);
    logTokens(result, this.#log, nowMs);
    logAdmissions(result, this.#log);
    for (const id of result.rejected) this.#end(id, outcomes.rejected, nowMs);
    for (const id of result.finished) this.#end(id, outcomes.completed, nowMs);
  }

  #end(id: number, outcome: Outcome, nowMs: number): void {
    this.#pool.release(id);
    this.#onEnd(id, outcome, nowMs);
  }
}

export function logTokens({ tokenIds, tokenCounts, tokenRequests }: StepResult, log: RequestLog, nowMs: number): void {
  for (let at = 0; at < tokenRequests; at++) log.tokens(tokenIds[at]!, tokenCounts[at]!, nowMs);
}

export function logAdmissions({ admitted }: StepResult, log: RequestLog): void {
  for (const { id, cachedTokens, again } of admitted) if (!again) log.firstCachedTokens[id] = cachedTokens;
}

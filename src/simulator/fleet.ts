import type { ActiveFaults } from "../mocker/active-faults.ts";
import type { EngineLoads, SimulatedRequest, StepResult } from "../mocker/engine.ts";
import type { FaultKind } from "../mocker/fault-script.ts";
import type { LostRequests } from "./lost-requests.ts";
import { type Outcome, outcomes, type RequestLog } from "./request-log.ts";
import { applyToEngine } from "./worker-faults.ts";
import type { WorkerPool, WorkerTally } from "./worker-pool.ts";

/** Simulated workers that serve requests. Its sources in the event queue are numbered from 0 here. */
export interface Fleet extends FaultyFleet {
  readonly tallies: readonly WorkerTally[];
  /** Of each worker, in the order of the tallies. */
  loads(): readonly EngineLoads[];
  submit(request: SimulatedRequest, nowMs: number): void;
  /** The source is due. */
  step(source: number, nowMs: number): void;
}

/** What can happen to the workers, numbered as in `tallies`. */
export interface FaultyFleet {
  readonly tallies: readonly WorkerTally[];
  /** A fault began or ended; `active`: what holds for the worker now. */
  fault(worker: number, kind: FaultKind, active: ActiveFaults, nowMs: number): void;
  /** A worker has been cut off for so long that it counts as lost until its link is back. */
  giveUp(worker: number, nowMs: number): void;
  /** After `fault` and `giveUp`, when it is known what happened to all workers: who takes requests, and lost ones go on. */
  settled(nowMs: number): void;
}

/** Told when a request has ended, exactly once for each. */
export type OnEnd = (id: number, outcome: Outcome, nowMs: number) => void;

/** What all fleets need. */
export interface FleetParts {
  readonly log: RequestLog;
  readonly onEnd: OnEnd;
  readonly lost: LostRequests;
  /** The request as it stands: behind the tokens that it was given. */
  readonly simulated: (id: number) => SimulatedRequest;
}

/** The part of a step that a client sees. */
type Delivery = Pick<StepResult, "tokenIds" | "tokenCounts" | "tokenRequests" | "finished" | "rejected">;

/** Workers that serve whole requests. */
export class AggregatedFleet implements Fleet {
  readonly #pool: WorkerPool;
  readonly #parts: FleetParts;
  readonly #dead = new Set<number>();
  /** Workers that are cut off, and what they have made meanwhile. */
  readonly #cut = new Map<number, Delivery[]>();

  constructor(pool: WorkerPool, parts: FleetParts) {
    this.#pool = pool;
    this.#parts = parts;
  }

  get tallies(): readonly WorkerTally[] {
    return this.#pool.tallies;
  }

  loads(): readonly EngineLoads[] {
    return this.#pool.loads();
  }

  submit(request: SimulatedRequest, nowMs: number): void {
    if (this.#pool.isServing) this.#pool.submit(this.#pool.choose(request), request, nowMs);
    else this.#parts.onEnd(request.id, outcomes.failed, nowMs);
  }

  step(worker: number, nowMs: number): void {
    const result = this.#pool.step(worker, nowMs);
    logAdmissions(result, this.#parts.log);
    const undelivered = this.#cut.get(worker);
    if (undelivered === undefined) this.#deliver(result, nowMs);
    else undelivered.push(copyOf(result));
  }

  fault(worker: number, kind: FaultKind, active: ActiveFaults, nowMs: number): void {
    applyToEngine(this.#pool, worker, kind, active, nowMs);
    if (kind === "kill") {
      if (active.has("kill")) this.#dead.add(worker);
      else this.#dead.delete(worker);
    }
    if (kind === "cutLink") {
      const undelivered = this.#cut.get(worker) ?? [];
      if (active.has("cutLink")) this.#cut.set(worker, undelivered);
      else this.#cut.delete(worker);
      for (const delivery of undelivered) this.#deliver(delivery, nowMs);
    }
    if (kind === "kill" && active.has("kill")) this.giveUp(worker, nowMs);
  }

  giveUp(worker: number, nowMs: number): void {
    this.#cut.get(worker)?.splice(0);
    const ids = this.#pool.requestsOn(worker);
    for (const id of ids) {
      this.#pool.release(id);
      if (!this.#dead.has(worker)) this.#pool.cancel(worker, id, nowMs);
    }
    this.#parts.lost.add(ids, nowMs);
  }

  settled(nowMs: number): void {
    const { lost, simulated } = this.#parts;
    this.#pool.offer((worker) => !this.#dead.has(worker) && !this.#cut.has(worker));
    lost.placeAll((id) => {
      if (!this.#pool.isServing) return false;
      this.submit(simulated(id), nowMs);
      return true;
    });
  }

  #deliver(delivery: Delivery, nowMs: number): void {
    const { log } = this.#parts;
    logTokens(delivery, log, nowMs);
    for (const id of delivery.rejected)
      this.#end(id, log.migrations[id] === 0 ? outcomes.rejected : outcomes.failed, nowMs);
    for (const id of delivery.finished) this.#end(id, outcomes.completed, nowMs);
  }

  #end(id: number, outcome: Outcome, nowMs: number): void {
    this.#pool.release(id);
    this.#parts.onEnd(id, outcome, nowMs);
  }
}

export function logTokens({ tokenIds, tokenCounts, tokenRequests }: Delivery, log: RequestLog, nowMs: number): void {
  for (let at = 0; at < tokenRequests; at++) log.tokens(tokenIds[at]!, tokenCounts[at]!, nowMs);
}

export function logAdmissions({ admitted }: StepResult, log: RequestLog): void {
  for (const { id, cachedTokens, again } of admitted) if (!again) log.admitted(id, cachedTokens);
}

/** A result belongs to its engine, and holds until the next step. */
function copyOf({ tokenIds, tokenCounts, tokenRequests, finished, rejected }: StepResult): Delivery {
  return {
    tokenIds: tokenIds.slice(0, tokenRequests),
    tokenCounts: tokenCounts.slice(0, tokenRequests),
    tokenRequests,
    finished: [...finished],
    rejected: [...rejected],
  };
}

import type { DisaggregatedEngine, EngineLoads, SimulatedRequest, StepResult } from "../mocker/engine.ts";
import type { BookedLoad } from "../router/load/load-book.ts";
import type { Router } from "../router/select/router.ts";
import { type EventQueue, phases } from "./event-queue.ts";

/** `worker`: serves whole requests. */
export type WorkerRole = "worker" | "prefill" | "decode";

/** What one simulated worker did. */
export interface WorkerTally {
  readonly id: string;
  readonly role: WorkerRole;
  requests: number;
  /** Time in passes. */
  busyMs: number;
  /** Computed, those computed again included. */
  prefillTokens: number;
  outputTokens: number;
  /** Found in the cache at admissions. */
  cachedTokens: number;
  preemptions: number;
  /** When it did not exist, in order; the last one may end at Infinity. */
  readonly deaths: { readonly fromMs: number; toMs: number }[];
}

/** Engines of one role behind one production router. Their places in the event queue begin at `firstSource`. */
export class WorkerPool {
  readonly tallies: readonly WorkerTally[];
  readonly #engines: readonly DisaggregatedEngine[];
  readonly #ids: readonly string[];
  readonly #router: Router;
  readonly #queue: EventQueue;
  readonly #firstSource: number;
  readonly #loads = new Map<number, BookedLoad>();
  readonly #workerOf = new Map<number, number>();
  /** Who takes requests. */
  #candidates: readonly string[];

  constructor(
    engines: readonly DisaggregatedEngine[],
    role: WorkerRole,
    router: Router,
    queue: EventQueue,
    firstSource: number,
  ) {
    this.#engines = engines;
    this.#ids = engines.map((_, index) => `${role}-${index + 1}`);
    this.tallies = this.#ids.map((id) => ({
      id,
      role,
      requests: 0,
      busyMs: 0,
      prefillTokens: 0,
      outputTokens: 0,
      cachedTokens: 0,
      preemptions: 0,
      deaths: [],
    }));
    this.#candidates = this.#ids;
    this.#router = router;
    this.#queue = queue;
    this.#firstSource = firstSource;
    for (let worker = 0; worker < engines.length; worker++) this.touched(worker);
  }

  get size(): number {
    return this.#engines.length;
  }

  loads(): EngineLoads[] {
    return this.#engines.map((engine) => engine.loads());
  }

  engine(worker: number): DisaggregatedEngine {
    return this.#engines[worker]!;
  }

  /** Whether any worker takes requests. */
  get isServing(): boolean {
    return this.#candidates.length > 0;
  }

  /** The worker that a request is booked on. */
  workerOf(id: number): number | undefined {
    return this.#workerOf.get(id);
  }

  /** Requests booked on a worker, in the order in which they were. */
  requestsOn(worker: number): number[] {
    return [...this.#workerOf].flatMap(([id, on]) => (on === worker ? [id] : []));
  }

  /** Says which workers take requests from now on. */
  offer(takes: (worker: number) => boolean): void {
    this.#candidates = this.#ids.filter((_, worker) => takes(worker));
  }

  kill(worker: number, nowMs: number): void {
    this.engine(worker).faults.kill();
    this.tallies[worker]!.deaths.push({ fromMs: nowMs, toMs: Number.POSITIVE_INFINITY });
    this.touched(worker);
  }

  restart(worker: number, nowMs: number): void {
    this.engine(worker).faults.restart(nowMs);
    this.tallies[worker]!.deaths.at(-1)!.toMs = nowMs;
    this.touched(worker);
  }

  /** Chooses a worker as the frontend would, and books the request on it until `release`. Only while `isServing`. */
  choose(request: SimulatedRequest): number {
    const { workerId, load } = this.#router.select(this.#candidates, { model: "", promptTokens: request.inputTokens });
    this.#loads.set(request.id, load);
    const worker = this.#ids.indexOf(workerId);
    this.#workerOf.set(request.id, worker);
    this.tallies[worker]!.requests += 1;
    return worker;
  }

  release(id: number): void {
    this.#loads.get(id)?.release();
    this.#loads.delete(id);
    this.#workerOf.delete(id);
  }

  submit(worker: number, request: SimulatedRequest, nowMs: number): void {
    this.engine(worker).submit(request, nowMs);
    this.touched(worker);
  }

  cancel(worker: number, id: number, nowMs: number): void {
    this.engine(worker).cancel(id, nowMs);
    this.touched(worker);
  }

  /** Steps the engine and adds what that brought to its tally. The result holds until the engine's next step. */
  step(worker: number, nowMs: number): StepResult {
    const result = this.engine(worker).step(nowMs);
    const tally = this.tallies[worker]!;
    for (const { wallTimeSeconds, dataParallelRank, scheduled } of result.metrics) {
      tally.prefillTokens += scheduled.prefillTokens;
      if (dataParallelRank === 0) tally.busyMs += wallTimeSeconds * 1000;
    }
    for (let at = 0; at < result.tokenRequests; at++) tally.outputTokens += result.tokenCounts[at]!;
    for (const { cachedTokens, again } of result.admitted) {
      // What a decode worker has on a first admission was transferred.
      if (tally.role !== "decode" || again) tally.cachedTokens += cachedTokens;
    }
    tally.preemptions += result.preempted.length;
    this.touched(worker);
    return result;
  }

  /** To be called whenever something was done to the engine: it may be due at another time now. */
  touched(worker: number): void {
    const engine = this.engine(worker);
    const phase = engine.inPass ? phases.passEnd : phases.passBegin;
    this.#queue.set(this.#firstSource + worker, engine.nextWorkAtMs, phase);
  }
}

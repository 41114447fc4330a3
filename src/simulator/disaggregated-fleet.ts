import type { ActiveFaults } from "../mocker/active-faults.ts";
import type { EngineLoads, SimulatedRequest } from "../mocker/engine.ts";
import type { FaultKind } from "../mocker/fault-script.ts";
import { KvHandoffs } from "../mocker/kv-handoffs.ts";
import { Links } from "../mocker/links.ts";
import { type EventQueue, phases } from "./event-queue.ts";
import { type Fleet, type FleetParts, logAdmissions, logTokens } from "./fleet.ts";
import { outcomes } from "./request-log.ts";
import { applyToEngine } from "./worker-faults.ts";
import type { WorkerPool, WorkerTally } from "./worker-pool.ts";

/** How KV comes from prefill workers to decode workers: over a link out of each of the former, and into each of the latter. */
export interface KvTransfer {
  /** See `Handoff`: what vLLM does, or SGLang. */
  readonly order: "source" | "target";
  readonly linkBytesPerSecond: number;
  readonly kvBytesPerToken: number;
}

interface Pair {
  readonly prefill: number;
  readonly decode: number;
  /** The decode worker has the KV: the other one is not needed any more. */
  moved: boolean;
}

/**
 * Prefill workers and decode workers. Each request gets one of each on arrival; an answer of one token needs no decode.
 * When one of the two is lost while it is needed, the request starts again with a new pair, behind its tokens.
 *
 *     sources   0 ..  prefill workers  .. P ..  decode workers  .. P + D: the links
 */
export class DisaggregatedFleet implements Fleet {
  readonly #prefill: WorkerPool;
  readonly #decode: WorkerPool;
  readonly #transfer: KvTransfer;
  readonly #links: Links;
  readonly #handoffs: KvHandoffs;
  readonly #queue: EventQueue;
  readonly #linksSource: number;
  readonly #parts: FleetParts;
  readonly #pairs = new Map<number, Pair>();
  /** By number among all workers. */
  readonly #dead = new Set<number>();

  constructor(
    prefill: WorkerPool,
    decode: WorkerPool,
    transfer: KvTransfer,
    { queue, linksSource }: { readonly queue: EventQueue; readonly linksSource: number },
    parts: FleetParts,
  ) {
    this.#prefill = prefill;
    this.#decode = decode;
    this.#transfer = transfer;
    this.#links = new Links(new Array<number>(prefill.size + decode.size).fill(transfer.linkBytesPerSecond));
    this.#handoffs = new KvHandoffs(this.#links);
    this.#queue = queue;
    this.#linksSource = linksSource;
    this.#parts = parts;
  }

  get tallies(): readonly WorkerTally[] {
    return [...this.#prefill.tallies, ...this.#decode.tallies];
  }

  loads(): readonly EngineLoads[] {
    return [...this.#prefill.loads(), ...this.#decode.loads()];
  }

  submit(request: SimulatedRequest, nowMs: number): void {
    if (!this.#canServe(request)) {
      this.#parts.onEnd(request.id, outcomes.failed, nowMs);
      return;
    }
    const prefill = this.#prefill.choose(request);
    if (request.outputTokens === 1) {
      this.#prefill.submit(prefill, request, nowMs);
      return;
    }
    const decode = this.#decode.choose(request);
    this.#pairs.set(request.id, { prefill, decode, moved: false });
    const { order, kvBytesPerToken } = this.#transfer;
    const source = this.#prefill.engine(prefill);
    const target = this.#decode.engine(decode);
    const links = [prefill, this.#prefill.size + decode];
    this.#handoffs.begin({ request, source, target, links, kvBytesPerToken, order }, nowMs);
    this.#decode.touched(decode);
    this.#prefill.submit(prefill, { ...request, holdKv: true }, nowMs);
  }

  step(source: number, nowMs: number): void {
    const decode = source - this.#prefill.size;
    if (decode < 0) this.#stepPrefill(source, nowMs);
    else if (decode < this.#decode.size) this.#stepDecode(decode, nowMs);
    else this.#stepTransfers(nowMs);
    this.#transfersTouched();
  }

  fault(worker: number, kind: FaultKind, active: ActiveFaults, nowMs: number): void {
    const isPrefill = worker < this.#prefill.size;
    const pool = isPrefill ? this.#prefill : this.#decode;
    const offset = isPrefill ? 0 : this.#prefill.size;
    if (kind === "cutLink") {
      const rate = active.has("cutLink") ? 0 : this.#transfer.linkBytesPerSecond;
      this.#links.setBandwidth(worker, rate, nowMs);
      this.#transfersTouched();
      return;
    }
    applyToEngine(pool, worker - offset, kind, active, nowMs);
    if (kind !== "kill") return;
    if (active.has("kill")) this.#dead.add(worker);
    else this.#dead.delete(worker);
    if (active.has("kill")) this.#lose(pool, worker - offset, nowMs);
  }

  /** Only the KV of a worker goes over the link that a script cuts here: it waits, and nobody is given up. */
  giveUp(): void {}

  settled(nowMs: number): void {
    const { lost, simulated } = this.#parts;
    const decodeFrom = this.#prefill.size;
    this.#prefill.offer((worker) => !this.#dead.has(worker));
    this.#decode.offer((worker) => !this.#dead.has(decodeFrom + worker));
    lost.placeAll((id) => {
      const request = simulated(id);
      if (!this.#canServe(request)) return false;
      this.submit(request, nowMs);
      return true;
    });
  }

  #canServe({ outputTokens }: SimulatedRequest): boolean {
    return this.#prefill.isServing && (outputTokens === 1 || this.#decode.isServing);
  }

  #transfersTouched(): void {
    this.#queue.set(this.#linksSource, this.#handoffs.nextWorkAtMs, phases.transferEnd);
  }

  #stepPrefill(worker: number, nowMs: number): void {
    const { log, onEnd } = this.#parts;
    const result = this.#prefill.step(worker, nowMs);
    logTokens(result, log, nowMs);
    logAdmissions(result, log);
    for (const id of result.rejected) if (this.#prefill.workerOf(id) === worker) this.#reject(id, nowMs);
    for (const id of result.finished) {
      this.#prefill.release(id);
      if (this.#pairs.has(id)) this.#handoffs.prefilled(id, nowMs);
      else onEnd(id, outcomes.completed, nowMs);
    }
  }

  #stepDecode(worker: number, nowMs: number): void {
    const result = this.#decode.step(worker, nowMs);
    logTokens(result, this.#parts.log, nowMs);
    for (const { id, missingTokens } of result.admitted) this.#handoffs.reserved(id, missingTokens, nowMs);
    for (const id of result.rejected) if (this.#decode.workerOf(id) === worker) this.#reject(id, nowMs);
    for (const id of result.finished) {
      this.#pairs.delete(id);
      this.#decode.release(id);
      this.#parts.onEnd(id, outcomes.completed, nowMs);
    }
  }

  #stepTransfers(nowMs: number): void {
    for (const id of this.#handoffs.step(nowMs)) {
      const pair = this.#pairs.get(id)!;
      pair.moved = true;
      this.#prefill.touched(pair.prefill);
      this.#decode.touched(pair.decode);
    }
  }

  /** A worker is gone: what needs it goes on elsewhere. */
  #lose(pool: WorkerPool, worker: number, nowMs: number): void {
    const ids = new Set(pool.requestsOn(worker));
    if (pool === this.#prefill) {
      // Finished there, and not moved yet.
      for (const [id, { prefill, moved }] of this.#pairs) if (prefill === worker && !moved) ids.add(id);
    }
    for (const id of ids) this.#forget(id, nowMs);
    this.#transfersTouched();
    this.#parts.lost.add([...ids], nowMs);
  }

  /** One of its engines can never run it. */
  #reject(id: number, nowMs: number): void {
    const { log, onEnd } = this.#parts;
    this.#forget(id, nowMs);
    onEnd(id, log.migrations[id] === 0 ? outcomes.rejected : outcomes.failed, nowMs);
  }

  /** Takes it from wherever it is. */
  #forget(id: number, nowMs: number): void {
    const pair = this.#pairs.get(id);
    this.#pairs.delete(id);
    this.#prefill.release(id);
    this.#decode.release(id);
    if (pair === undefined) return;
    this.#handoffs.cancel(id, nowMs);
    this.#prefill.cancel(pair.prefill, id, nowMs);
    this.#decode.cancel(pair.decode, id, nowMs);
  }
}

import type { EngineLoads, SimulatedRequest } from "../mocker/engine.ts";
import { KvHandoffs } from "../mocker/kv-handoffs.ts";
import { Links } from "../mocker/links.ts";
import { type EventQueue, phases } from "./event-queue.ts";
import { type Fleet, logAdmissions, logTokens, type OnEnd } from "./fleet.ts";
import { outcomes, type RequestLog } from "./request-log.ts";
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
}

/**
 * Prefill workers and decode workers. Each request gets one of each on arrival; an answer of one token needs no decode.
 *
 *     sources   0 ..  prefill workers  .. P ..  decode workers  .. P + D: the links
 */
export class DisaggregatedFleet implements Fleet {
  readonly #prefill: WorkerPool;
  readonly #decode: WorkerPool;
  readonly #transfer: KvTransfer;
  readonly #handoffs: KvHandoffs;
  readonly #queue: EventQueue;
  readonly #linksSource: number;
  readonly #log: RequestLog;
  readonly #onEnd: OnEnd;
  readonly #pairs = new Map<number, Pair>();

  constructor(
    prefill: WorkerPool,
    decode: WorkerPool,
    transfer: KvTransfer,
    { queue, linksSource }: { readonly queue: EventQueue; readonly linksSource: number },
    log: RequestLog,
    onEnd: OnEnd,
  ) {
    this.#prefill = prefill;
    this.#decode = decode;
    this.#transfer = transfer;
    const links = new Array<number>(prefill.size + decode.size).fill(transfer.linkBytesPerSecond);
    this.#handoffs = new KvHandoffs(new Links(links));
    this.#queue = queue;
    this.#linksSource = linksSource;
    this.#log = log;
    this.#onEnd = onEnd;
  }

  get tallies(): readonly WorkerTally[] {
    return [...this.#prefill.tallies, ...this.#decode.tallies];
  }

  loads(): readonly EngineLoads[] {
    return [...this.#prefill.loads(), ...this.#decode.loads()];
  }

  submit(request: SimulatedRequest, nowMs: number): void {
    const prefill = this.#prefill.choose(request);
    if (request.outputTokens === 1) {
      this.#prefill.submit(prefill, request, nowMs);
      return;
    }
    const decode = this.#decode.choose(request);
    this.#pairs.set(request.id, { prefill, decode });
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
    this.#queue.set(this.#linksSource, this.#handoffs.nextWorkAtMs, phases.transferEnd);
  }

  #stepPrefill(worker: number, nowMs: number): void {
    const result = this.#prefill.step(worker, nowMs);
    logTokens(result, this.#log, nowMs);
    logAdmissions(result, this.#log);
    for (const id of result.rejected) this.#reject(id, nowMs);
    for (const id of result.finished) {
      this.#prefill.release(id);
      if (this.#pairs.has(id)) this.#handoffs.prefilled(id, nowMs);
      else this.#onEnd(id, outcomes.completed, nowMs);
    }
  }

  #stepDecode(worker: number, nowMs: number): void {
    const result = this.#decode.step(worker, nowMs);
    logTokens(result, this.#log, nowMs);
    for (const { id, missingTokens } of result.admitted) this.#handoffs.reserved(id, missingTokens, nowMs);
    for (const id of result.rejected) this.#reject(id, nowMs);
    for (const id of result.finished) {
      this.#pairs.delete(id);
      this.#decode.release(id);
      this.#onEnd(id, outcomes.completed, nowMs);
    }
  }

  #stepTransfers(nowMs: number): void {
    for (const id of this.#handoffs.step(nowMs)) {
      const { prefill, decode } = this.#pairs.get(id)!;
      this.#prefill.touched(prefill);
      this.#decode.touched(decode);
    }
  }

  /** One of its engines can never run it: the other one forgets it too. */
  #reject(id: number, nowMs: number): void {
    if (this.#log.outcome[id] !== outcomes.incomplete) return; // both refused it
    const pair = this.#pairs.get(id);
    this.#pairs.delete(id);
    this.#prefill.release(id);
    this.#decode.release(id);
    if (pair !== undefined) {
      this.#handoffs.cancel(id, nowMs);
      this.#prefill.cancel(pair.prefill, id, nowMs);
      this.#decode.cancel(pair.decode, id, nowMs);
    }
    this.#onEnd(id, outcomes.rejected, nowMs);
  }
}

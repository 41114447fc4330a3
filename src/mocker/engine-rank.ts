import { type Random, seededRandom } from "../protocol/random.ts";
import { type BlockPool, PrefixBlockPool } from "./block-pool.ts";
import { CacheTiers } from "./cache-tiers.ts";
import type { SimulatedRequest } from "./engine.ts";
import type { EngineConfig } from "./engine-config.ts";
import { type ForwardPassMetrics, Spread } from "./forward-pass.ts";
import { KvEventLog, type KvListener } from "./kv-events.ts";
import { type Scheduler, SchedulerState } from "./scheduler.ts";
import { Sequence } from "./sequence.ts";
import { SglangScheduler } from "./sglang-scheduler.ts";
import type { StepReport } from "./step-report.ts";
import { emptyPass } from "./timing/timing.ts";
import { VllmScheduler } from "./vllm-scheduler.ts";

/** One data-parallel rank of an engine: a scheduler, a pool and the sequences in it. Knows passes, but no time. */
export class EngineRank {
  readonly #config: EngineConfig;
  readonly #rank: number;
  readonly #pool: BlockPool;
  readonly #events: KvEventLog | undefined;
  readonly #tiers: CacheTiers | undefined;
  readonly #state: SchedulerState;
  readonly #scheduler: Scheduler;
  readonly #sequences = new Map<number, Sequence>();
  /** Finished, but their blocks wait for a transfer. */
  readonly #held = new Map<number, Sequence>();
  readonly #draftLuck: Random;
  readonly #decodesAfterPrefill: boolean;
  readonly #shape = emptyPass();
  readonly #prefillLengths = new Spread();
  readonly #decodeContexts = new Spread();
  #rejected: number[] = [];
  #passes = 0;

  constructor(config: EngineConfig, rank: number) {
    this.#config = config;
    this.#events = config.kvEvents ? new KvEventLog(rank) : undefined;
    const bytesPerBlock = config.kvBytesPerToken * config.blockTokens;
    this.#tiers = config.tiers.length > 0 ? new CacheTiers(config.tiers, bytesPerBlock) : undefined;
    this.#pool = new PrefixBlockPool(config.blocks, config.prefixCaching, listenerFor(this.#events, this.#tiers));
    this.#state = new SchedulerState(config, this.#pool, this.#tiers);
    this.#scheduler =
      config.flavour === "vllm" ? new VllmScheduler() : new SglangScheduler(config.sglang.conservativeness);
    this.#decodesAfterPrefill = config.flavour === "vllm" && config.role !== "prefill";
    this.#draftLuck = seededRandom(config.seed + rank);
    this.#rank = rank;
  }

  get running(): number {
    return this.#state.sequences;
  }

  get waiting(): number {
    return this.#state.waiting.length;
  }

  get waitingTokens(): number {
    return this.#state.waiting.tokens;
  }

  /** When blocks from a slower tier are here. */
  get nextLoadMs(): number {
    return this.#tiers?.nextWorkAtMs ?? Number.POSITIVE_INFINITY;
  }

  get pool(): BlockPool {
    return this.#pool;
  }

  /** The request is finished, but its blocks wait for a transfer. */
  holds(id: number): boolean {
    return this.#held.has(id);
  }

  dropEvents(drop: boolean): void {
    if (this.#events !== undefined) this.#events.dropping = drop;
  }

  submit(request: SimulatedRequest): void {
    const outputTokens = this.#config.role === "prefill" ? 1 : request.outputTokens;
    if (this.#canNeverRun(request.inputTokens, outputTokens) || this.waiting >= this.#config.maxWaiting) {
      this.#rejected.push(request.id);
      return;
    }
    const sequence = new Sequence(request, outputTokens);
    this.#sequences.set(request.id, sequence);
    this.#state.waiting.push(sequence);
  }

  cancel(id: number, nowMs: number): boolean {
    const sequence = this.#sequences.get(id);
    if (sequence === undefined) return this.releaseHeld(id) || this.#unreject(id);
    this.#sequences.delete(id);
    sequence.scheduled = 0;
    const { running, waiting, awaiting } = this.#state;
    const place = running.indexOf(sequence);
    if (place >= 0) running.splice(place, 1);
    else if (this.#state.loading.delete(id)) this.#tiers?.cancel(id, nowMs);
    else if (!awaiting.delete(sequence)) waiting.remove(sequence);
    this.#scheduler.forget(sequence);
    sequence.dropBlocks(this.#pool);
    return true;
  }

  /** A rejection that nobody has heard of yet. */
  #unreject(id: number): boolean {
    const place = this.#rejected.indexOf(id);
    if (place >= 0) this.#rejected.splice(place, 1);
    return place >= 0;
  }

  kvArrived(id: number): boolean {
    const sequence = this.#sequences.get(id);
    if (sequence === undefined || !this.#state.awaiting.delete(sequence)) return false;
    this.#state.running.push(sequence);
    return true;
  }

  releaseHeld(id: number): boolean {
    const sequence = this.#held.get(id);
    if (sequence === undefined) return false;
    this.#held.delete(id);
    sequence.dropBlocks(this.#pool);
    return true;
  }

  /** Who has all its blocks from slower tiers now goes back to the front of the line, and finds them in the cache. */
  finishLoads(nowMs: number): void {
    for (const id of this.#tiers?.step(nowMs) ?? []) {
      const sequence = this.#state.loading.get(id);
      if (sequence === undefined) continue;
      this.#state.loading.delete(id);
      sequence.dropBlocks(this.#pool);
      this.#state.waiting.pushFront(sequence);
    }
  }

  /** Schedules a pass. Returns how long it takes at normal speed, in ms; 0 when there is nothing to compute. */
  begin(report: StepReport, nowMs: number): number {
    this.#state.nowMs = nowMs;
    for (const id of this.#rejected) report.rejected.push(id);
    this.#rejected = [];
    this.#scheduler.schedule(this.#state, report);
    this.#events?.moveTo(report.kvEvents);
    if (this.#state.pass.length === 0) return 0;
    this.#passes += 1;
    this.#measure();
    return this.#config.timing.passMs(this.#shape);
  }

  /** The scheduled pass is over: its tokens are given. */
  end(report: StepReport): void {
    const { pass } = this.#state;
    let finished = 0;
    for (const sequence of pass) {
      const tokens = sequence.scheduled;
      if (tokens === 0) continue; // cancelled during the pass
      sequence.scheduled = 0;
      sequence.computed += tokens;
      let gives = tokens;
      if (!sequence.decoding) {
        if (sequence.computed < sequence.known) continue;
        gives = 1;
        sequence.decoding = true;
      }
      sequence.given += gives;
      report.tokens(sequence.id, gives);
      if (sequence.given >= sequence.outputTokens) {
        finished += 1;
        this.#finish(sequence, report);
      } else sequence.burst = this.#nextBurst(sequence);
    }
    pass.length = 0;
    if (finished > 0) this.#state.running = this.#state.running.filter((sequence) => this.#sequences.has(sequence.id));
    this.#events?.moveTo(report.kvEvents);
  }

  metrics(wallTimeMs: number): ForwardPassMetrics {
    const { waiting } = this.#state;
    const shape = this.#shape;
    const busy = wallTimeMs > 0;
    return {
      counterId: this.#passes,
      dataParallelRank: this.#rank,
      wallTimeSeconds: wallTimeMs / 1000,
      scheduled: {
        prefillRequests: busy ? shape.prefillRequests : 0,
        prefillTokens: busy ? shape.prefillTokens : 0,
        prefillLengthVariance: busy ? this.#prefillLengths.variance : 0,
        prefillKvTokens: busy ? shape.prefillPastTokens : 0,
        decodeRequests: busy ? shape.decodeRequests : 0,
        decodeKvTokens: busy ? shape.decodeContextTokens : 0,
        decodeKvVariance: busy ? this.#decodeContexts.variance : 0,
      },
      queued: {
        prefillRequests: waiting.prompts.count,
        prefillTokens: waiting.prompts.sum,
        prefillLengthVariance: waiting.prompts.variance,
        decodeRequests: waiting.contexts.count,
        decodeKvTokens: waiting.contexts.sum,
        decodeKvVariance: waiting.contexts.variance,
      },
    };
  }

  #finish(sequence: Sequence, report: StepReport): void {
    report.finished.push(sequence.id);
    this.#sequences.delete(sequence.id);
    this.#scheduler.forget(sequence);
    if (sequence.holdKv) this.#held.set(sequence.id, sequence);
    else sequence.dropBlocks(this.#pool);
  }

  /** One token, and each draft token as long as luck lasts. */
  #nextBurst(sequence: Sequence): number {
    const most = sequence.outputTokens - sequence.given;
    let burst = 1;
    for (const rate of this.#config.acceptRates) {
      if (burst >= most || this.#draftLuck.next() >= rate) break;
      burst += 1;
    }
    return burst;
  }

  #canNeverRun(inputTokens: number, outputTokens: number): boolean {
    const config = this.#config;
    if (inputTokens > config.maxModelTokens) return true;
    const tokens = inputTokens + outputTokens;
    if (config.flavour === "sglang") {
      // Its gate asks for less than all of an empty pool, after a page of overhead.
      const page = config.blockTokens;
      return Math.ceil(inputTokens / page) * page + outputTokens + page >= config.blocks * page;
    }
    return (
      this.#state.blocksFor(tokens) > config.blocks || (!config.chunkedPrefill && tokens > config.maxBatchedTokens)
    );
  }

  #measure(): void {
    const shape = this.#shape;
    const lengths = this.#prefillLengths;
    const contexts = this.#decodeContexts;
    lengths.clear();
    contexts.clear();
    shape.prefillTokens = 0;
    shape.prefillPastTokens = 0;
    shape.prefillSquares = 0;
    shape.prefillsCompleted = 0;
    shape.decodeTokens = 0;
    for (const sequence of this.#state.pass) {
      const { computed, scheduled } = sequence;
      if (sequence.decoding) {
        contexts.add(computed);
        shape.decodeTokens += scheduled;
        continue;
      }
      const end = computed + scheduled;
      lengths.add(sequence.inputTokens);
      shape.prefillTokens += scheduled;
      shape.prefillPastTokens += computed;
      shape.prefillSquares += end * end - computed * computed;
      if (end === sequence.known && this.#decodesAfterPrefill) shape.prefillsCompleted += 1;
    }
    shape.prefillRequests = lengths.count;
    shape.decodeRequests = contexts.count;
    shape.decodeContextTokens = contexts.sum;
    shape.poolUsage = this.#pool.total === Number.POSITIVE_INFINITY ? 0 : this.#pool.active / this.#pool.total;
  }
}

/** Events and tiers both follow what the pool does. */
function listenerFor(events: KvEventLog | undefined, tiers: CacheTiers | undefined): KvListener | undefined {
  if (tiers === undefined) return events;
  return {
    stored: (key, parent) => events?.stored(key, parent),
    removed: (key) => {
      events?.removed(key);
      tiers.sink(key);
    },
    evictable: () => events?.evictable(),
  };
}

import { StatorError } from "../protocol/errors.ts";
import type { BlockPool } from "./block-pool.ts";
import type { CacheTiers } from "./cache-tiers.ts";
import type { EngineConfig } from "./engine-config.ts";
import type { Sequence } from "./sequence.ts";
import { OwnKeys } from "./sequence.ts";
import type { StepReport } from "./step-report.ts";
import { WaitingLine } from "./waiting-line.ts";

/** Decides who computes what in the next pass. One implementation per flavour of engine. */
export interface Scheduler {
  /** Fills `state.pass` and sets `scheduled` of its sequences. Nothing scheduled means that nothing can run now. */
  schedule(state: SchedulerState, report: StepReport): void;
  /** The sequence leaves: cancelled, or finished. Its blocks are the caller's. */
  forget(sequence: Sequence): void;
}

/** What a scheduler works on. Owned by the rank; the scheduler moves sequences between its lists. */
export class SchedulerState {
  readonly config: EngineConfig;
  readonly pool: BlockPool;
  readonly waiting = new WaitingLine();
  /** Admitted, in order of admission. */
  running: Sequence[] = [];
  /** Admitted and holding blocks, but their KV comes from elsewhere. */
  readonly awaiting = new Set<Sequence>();
  /** Who takes part in the pass under way. */
  readonly pass: Sequence[] = [];
  /** Waiting for blocks from a slower tier, by id. They hold room in the pool for them. */
  readonly loading = new Map<number, Sequence>();
  readonly ownKeys = new OwnKeys();
  /** Of the pass that is being scheduled. */
  nowMs = 0;
  readonly #tiers: CacheTiers | undefined;

  constructor(config: EngineConfig, pool: BlockPool, tiers: CacheTiers | undefined) {
    this.config = config;
    this.pool = pool;
    this.#tiers = tiers;
  }

  /** Admitted, and those on their way to it: what `maxSequences` counts. */
  get sequences(): number {
    return this.running.length + this.awaiting.size + this.loading.size;
  }

  cover(sequence: Sequence, tokens: number): boolean {
    return sequence.cover(tokens, this.pool, this.config.blockTokens, this.ownKeys);
  }

  /** As `cover`, where a plan has made sure that there is room. Running out would mean that the plan is wrong. */
  coverPlanned(sequence: Sequence, tokens: number): void {
    if (this.cover(sequence, tokens)) return;
    throw new StatorError(
      "internal_error",
      `The simulated scheduler planned more blocks than there are for request ${sequence.id}`,
    );
  }

  blocksFor(tokens: number): number {
    return Math.ceil(tokens / this.config.blockTokens);
  }

  /**
   * How many blocks of the sequence are cached. At least its last token must be computed, so the block that would make
   * it complete does not count; speculative decoding computes one block more, to have the states that drafting needs.
   */
  cachedBlocks(sequence: Sequence): { blocks: number; activeBlocks: number } {
    const { blockTokens, acceptRates } = this.config;
    const keys = sequence.keys;
    const match = this.pool.match(keys, Math.floor((sequence.known - 1) / blockTokens));
    if (acceptRates.length === 0 || match.blocks === 0) return match;
    return this.pool.match(keys, match.blocks - 1);
  }

  /**
   * When slower tiers have blocks that follow the cached ones, the first in line leaves it, takes its blocks, and comes
   * back to the front when they are loaded; it finds them in the cache then. Loads what there is room for. Call right
   * after `cachedBlocks`.
   */
  beginLoading(sequence: Sequence, cached: { blocks: number; activeBlocks: number }): boolean {
    if (this.#tiers === undefined || sequence.loaded || sequence.kv !== "compute") return false;
    const { blockTokens } = this.config;
    const from = cached.blocks;
    const below = this.#tiers.match(sequence.keys, from, Math.floor((sequence.known - 1) / blockTokens));
    const room = this.pool.available - (cached.blocks - cached.activeBlocks);
    const found = Math.min(below, room);
    if (found <= 0) return false;
    const keys = sequence.keys.slice(from, from + found);
    sequence.loaded = true;
    this.waiting.shift();
    sequence.adopt(this.pool.claim(cached), from, blockTokens);
    this.coverPlanned(sequence, (from + found) * blockTokens);
    this.loading.set(sequence.id, sequence);
    this.#tiers.load(sequence.id, keys, this.nowMs);
    return true;
  }

  /** Gives a waiting sequence its cached prefix, and says so in the report. Call right after `cachedBlocks`. */
  adopt(sequence: Sequence, cached: { blocks: number; activeBlocks: number }, report: StepReport): void {
    const blocks = cached.blocks;
    sequence.adopt(this.pool.claim(cached), blocks, this.config.blockTokens);
    const transferred = sequence.kv === "compute" ? 0 : sequence.known - 1 - sequence.computed;
    report.admitted.push({
      id: sequence.id,
      cachedTokens: sequence.computed + transferred,
      missingTokens: sequence.kv === "awaited" ? transferred : 0,
      again: sequence.admissions > 0,
    });
    sequence.admissions += 1;
    sequence.loaded = false;
  }

  /** Lets a sequence begin whose KV comes from elsewhere: it gets all its blocks, and decodes at once or when the KV is here. */
  admitTransferred(sequence: Sequence): void {
    this.coverPlanned(sequence, sequence.known);
    sequence.computed = sequence.known - 1;
    sequence.decoding = true;
    if (sequence.kv === "awaited") this.awaiting.add(sequence);
    else this.running.push(sequence);
    sequence.kv = "compute";
  }

  /** Puts a sequence into the pass. Its blocks must be there. */
  take(sequence: Sequence, tokens: number): void {
    sequence.scheduled = tokens;
    this.pass.push(sequence);
  }
}

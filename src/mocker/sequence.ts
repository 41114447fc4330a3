import { type BlockPool, noBlock, noKey } from "./block-pool.ts";
import type { SimulatedRequest } from "./engine.ts";

/** A request inside an engine: how far it is, and the blocks that it holds. */
export class Sequence {
  readonly id: number;
  readonly inputTokens: number;
  /** Tokens that it will give. */
  readonly outputTokens: number;
  readonly priority: number;
  readonly holdKv: boolean;
  /** What its next admission does about KV: a preempted one has to compute what had come from elsewhere. */
  kv: "compute" | "arrived" | "awaited";
  /** Tokens given so far. */
  given = 0;
  /** Tokens, of the known ones, whose KV is there. */
  computed = 0;
  /** Tokens to compute in the pass under way; 0 when it has no part in it. */
  scheduled = 0;
  /** Tokens that it gets at the end of the pass when all known ones are computed then: more than 1 when speculating. */
  burst = 1;
  /** Its next pass is one token behind a complete context. */
  decoding = false;
  admissions = 0;
  /** What slower tiers had of it has been loaded since its last admission; it is not tried twice. */
  loaded = false;
  /** Tokens that its blocks hold. */
  capacity = 0;
  tip = noBlock;
  #sealed = 0;
  #keys: readonly number[] | number[];
  #ownKeys: number[] | undefined;

  constructor(request: SimulatedRequest, outputTokens: number) {
    this.id = request.id;
    this.inputTokens = request.inputTokens;
    this.outputTokens = outputTokens;
    this.priority = request.priority ?? 0;
    this.holdKv = request.holdKv ?? false;
    this.kv = request.kv ?? "compute";
    this.#keys = request.blockKeys;
  }

  /** Tokens of the prompt and those given: all that must be computed before the next one can be given. */
  get known(): number {
    return this.inputTokens + this.given;
  }

  get keys(): readonly number[] {
    return this.#keys;
  }

  /** Takes over a cached prefix. The sequence must hold nothing. */
  adopt(tip: number, blocks: number, blockTokens: number): void {
    this.tip = tip;
    this.#sealed = blocks;
    this.capacity = blocks * blockTokens;
    this.computed = this.capacity;
  }

  /** Gets blocks for its first `tokens` tokens. False when the pool is exhausted; what it got until then it keeps. */
  cover(tokens: number, pool: BlockPool, blockTokens: number, ownKeys: OwnKeys): boolean {
    let blocks = this.capacity / blockTokens;
    if (this.#sealed < blocks && tokens >= this.capacity) {
      this.tip = pool.seal(this.tip, this.#keyOf(this.#sealed, ownKeys));
      this.#sealed = blocks;
    }
    while (this.capacity < tokens) {
      const full = this.capacity + blockTokens <= tokens;
      const tip = pool.extend(this.tip, full ? this.#keyOf(blocks, ownKeys) : noKey);
      if (tip === noBlock) return false;
      this.tip = tip;
      blocks += 1;
      if (full) this.#sealed = blocks;
      this.capacity += blockTokens;
    }
    return true;
  }

  /** Gives all blocks back. What is cached of them may be found again. */
  dropBlocks(pool: BlockPool): void {
    pool.release(this.tip);
    this.tip = noBlock;
    this.#sealed = 0;
    this.capacity = 0;
    this.computed = 0;
    this.decoding = false;
  }

  #keyOf(block: number, ownKeys: OwnKeys): number {
    const key = this.#keys[block];
    if (key !== undefined) return key;
    this.#ownKeys ??= [...this.#keys];
    this.#keys = this.#ownKeys;
    while (this.#ownKeys.length <= block) this.#ownKeys.push(ownKeys.next());
    return this.#ownKeys[block]!;
  }
}

/** Keys for blocks of answers that nothing names: negative, below `noKey`, unique within an engine. */
export class OwnKeys {
  #last = noKey;

  next(): number {
    this.#last -= 1;
    return this.#last;
  }
}

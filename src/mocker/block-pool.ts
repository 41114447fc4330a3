import { type KvListener, noParent } from "./kv-events.ts";

/** No block: of `extend` when the pool is exhausted, and as the parent of a chain's first block. */
export const noBlock = -1;
/** Key of a block whose content nobody shares: partly filled, or without prefix caching. */
export const noKey = -1;

/** What a sequence and a scheduler need of a pool of KV blocks. See {@link PrefixBlockPool} for the rules. */
export interface BlockPool {
  /** Blocks that can be had without preempting anyone: free ones and evictable ones. */
  readonly available: number;
  /** Blocks that sequences use. */
  readonly active: number;
  /** Blocks that only the cache keeps. */
  readonly cached: number;
  readonly total: number;
  /** How many of the first `limit` keys are cached, one after the other from the first on. */
  match(keys: readonly number[], limit: number): PrefixMatch;
  /** Uses the matched chain: the returned block is the sequence's tip. Right after `match`, with the same answer. */
  claim(match: PrefixMatch): number;
  /** The next block behind a sequence's tip, which it replaces. A cached block with the key is shared. `noBlock` when exhausted. */
  extend(tip: number, key: number): number;
  /** The tip, extended with `noKey`, is full now and gets a key. Returns the tip from now on: an equal block may exist already. */
  seal(tip: number, key: number): number;
  /** The sequence does not need its chain any more. Keyed blocks stay cached until evicted. */
  release(tip: number): void;
}

/** The object belongs to the pool and holds until its next `match`. */
export interface PrefixMatch {
  /** Blocks found; of them, those that a sequence uses right now (always the first ones). */
  readonly blocks: number;
  readonly activeBlocks: number;
}

/**
 * A pool of KV blocks with a prefix cache.
 *
 *     keys are chained, so blocks form a forest; a sequence is the way from its tip to a root:
 *
 *         [a] <- [b] <- [c]      sequence 1, tip c           uses(a) = 1 (by b)    uses(b) = 2 (by c and d)
 *                  ^--- [d]      sequence 2, tip d           uses(c) = uses(d) = 1 (their sequences)
 *
 * A block is used by each active child and by each sequence whose tip it is. So a claim and a release touch only what
 * changes between active and cached, and a shared prefix costs nothing.
 *
 * A released chain enters the eviction list tip first. A parent enters after all its children, because an active child
 * keeps it active; so the head of the list is always a leaf, and among the leaves the one unused for longest:
 * eviction is leaf-first LRU, in constant time.
 *
 * Blocks without a key are never found, and free as soon as nobody uses them.
 */
export class PrefixBlockPool implements BlockPool {
  readonly total: number;
  readonly #caching: boolean;
  readonly #listener: KvListener | undefined;
  readonly #blockOf = new Map<number, number>();
  readonly #match = { blocks: 0, activeBlocks: 0, tip: noBlock };

  // Per block. `#next` and `#previous` link the eviction list; `#next` also the free list.
  #key: Float64Array;
  #parent: Int32Array;
  #uses: Int32Array;
  #next: Int32Array;
  #previous: Int32Array;
  /** Blocks of the arrays that were handed out at least once; the rest was never touched. */
  #touched = 0;
  #firstFree = noBlock;
  #oldest = noBlock;
  #newest = noBlock;
  #active = 0;
  #cached = 0;

  /** `total` may be Infinity: then nothing is ever evicted, and memory grows with what is stored. */
  constructor(total: number, caching: boolean, listener?: KvListener) {
    this.total = total;
    this.#caching = caching;
    this.#listener = listener;
    const size = Math.min(total, 1024);
    this.#key = new Float64Array(size);
    this.#parent = new Int32Array(size);
    this.#uses = new Int32Array(size);
    this.#next = new Int32Array(size);
    this.#previous = new Int32Array(size);
  }

  get active(): number {
    return this.#active;
  }

  get cached(): number {
    return this.#cached;
  }

  get available(): number {
    return this.total - this.#active;
  }

  match(keys: readonly number[], limit: number): PrefixMatch {
    const match = this.#match;
    match.blocks = 0;
    match.activeBlocks = 0;
    match.tip = noBlock;
    const length = Math.min(limit, keys.length);
    for (let index = 0; index < length; index++) {
      const block = this.#blockOf.get(keys[index]!);
      // A key under another parent would be a trace whose ids are not chained: not the same content.
      if (block === undefined || this.#parent[block] !== match.tip) break;
      match.tip = block;
      match.blocks += 1;
      if (this.#uses[block]! > 0) match.activeBlocks += 1;
    }
    return match;
  }

  claim(match: PrefixMatch): number {
    const tip = this.#match.tip;
    if (match.blocks > 0) this.#use(tip);
    return tip;
  }

  extend(tip: number, key: number): number {
    const found = this.#find(key);
    if (found !== noBlock && this.#parent[found] === tip) {
      this.#use(found);
      if (tip !== noBlock) this.#disuse(tip); // still used by the shared child, so nothing is cached here
      return found;
    }
    const block = this.#allocate();
    if (block === noBlock) return noBlock;
    this.#key[block] = noKey;
    this.#parent[block] = tip; // the tip's use passes from the sequence to its child
    this.#uses[block] = 1;
    this.#active += 1;
    if (found === noBlock) this.#name(block, key);
    return block;
  }

  seal(tip: number, key: number): number {
    const found = this.#find(key);
    if (found === noBlock) this.#name(tip, key);
    else if (this.#parent[found] === this.#parent[tip]) {
      this.#use(found);
      this.release(tip);
      return found;
    }
    return tip;
  }

  release(tip: number): void {
    if (tip !== noBlock) this.#disuse(tip);
  }

  #find(key: number): number {
    return key === noKey ? noBlock : (this.#blockOf.get(key) ?? noBlock);
  }

  /**
   * Gives a block a key that no other has. Keys that are not chained would break the forest: a key that stands under
   * another parent keeps its place, and the new block stays private, with all that comes behind it.
   */
  #name(block: number, key: number): void {
    if (!this.#caching || key === noKey) return;
    const parent = this.#parent[block]!;
    if (parent !== noBlock && this.#key[parent] === noKey) return;
    this.#blockOf.set(key, block);
    this.#key[block] = key;
    this.#listener?.stored(key, parent === noBlock ? noParent : this.#key[parent]!);
  }

  /** One more use; a block that was only cached becomes active, and uses its parent. */
  #use(from: number): void {
    for (let block = from; block !== noBlock; block = this.#parent[block]!) {
      this.#uses[block]! += 1;
      if (this.#uses[block]! > 1) return;
      this.#unlink(block);
      this.#cached -= 1;
      this.#active += 1;
    }
  }

  /** One use less; an unused block becomes cached (or free, without a key), and does not use its parent any more. */
  #disuse(from: number): void {
    for (let block = from; block !== noBlock; block = this.#parent[block]!) {
      this.#uses[block]! -= 1;
      if (this.#uses[block]! > 0) return;
      this.#active -= 1;
      if (this.#key[block] === noKey) this.#free(block);
      else this.#append(block);
    }
  }

  #allocate(): number {
    if (this.#firstFree !== noBlock) {
      const block = this.#firstFree;
      this.#firstFree = this.#next[block]!;
      return block;
    }
    if (this.#touched < this.total) {
      if (this.#touched === this.#key.length) this.#grow();
      return this.#touched++;
    }
    return this.#evict();
  }

  #evict(): number {
    const block = this.#oldest;
    if (block === noBlock) return noBlock;
    this.#unlink(block);
    this.#cached -= 1;
    const key = this.#key[block]!;
    this.#blockOf.delete(key);
    this.#listener?.removed(key);
    return block;
  }

  #free(block: number): void {
    this.#next[block] = this.#firstFree;
    this.#firstFree = block;
  }

  #append(block: number): void {
    this.#next[block] = noBlock;
    this.#previous[block] = this.#newest;
    if (this.#newest === noBlock) this.#oldest = block;
    else this.#next[this.#newest] = block;
    this.#newest = block;
    this.#cached += 1;
    this.#listener?.evictable();
  }

  #unlink(block: number): void {
    const next = this.#next[block]!;
    const previous = this.#previous[block]!;
    if (previous === noBlock) this.#oldest = next;
    else this.#next[previous] = next;
    if (next === noBlock) this.#newest = previous;
    else this.#previous[next] = previous;
  }

  #grow(): void {
    const size = Math.min(this.total, this.#key.length * 2);
    const grown = <Array extends Float64Array | Int32Array>(target: Array, old: Array): Array => {
      target.set(old);
      return target;
    };
    this.#key = grown(new Float64Array(size), this.#key);
    this.#parent = grown(new Int32Array(size), this.#parent);
    this.#uses = grown(new Int32Array(size), this.#uses);
    this.#next = grown(new Int32Array(size), this.#next);
    this.#previous = grown(new Int32Array(size), this.#previous);
  }
}

import { type BlockPool, noBlock, noKey, type PrefixMatch } from "./block-pool.ts";

interface Block {
  readonly id: number;
  key: number;
  readonly parent: Block | undefined;
  /** When it was last released, as a count of releases. */
  releasedAt: number;
}

/**
 * The rules of {@link BlockPool} in the plainest form, for the property tests: a block is active when it lies on the way
 * from some sequence's tip to the root, and eviction searches all cached blocks without cached children for the one
 * that was released first.
 */
export class ReferenceBlockPool implements BlockPool {
  readonly total: number;
  readonly #blocks = new Map<number, Block>();
  /** One entry per sequence. */
  readonly #tips: Block[] = [];
  #nextId = 0;
  #releases = 0;
  #matched: Block | undefined;

  constructor(total: number) {
    this.total = total;
  }

  get active(): number {
    return this.#activeBlocks().size;
  }

  get cached(): number {
    return this.#blocks.size - this.active;
  }

  get available(): number {
    return this.total - this.active;
  }

  match(keys: readonly number[], limit: number): PrefixMatch {
    const active = this.#activeBlocks();
    let blocks = 0;
    let activeBlocks = 0;
    this.#matched = undefined;
    for (const key of keys.slice(0, limit)) {
      const block = this.#find(this.#matched, key);
      if (block === undefined) break;
      this.#matched = block;
      blocks += 1;
      if (active.has(block)) activeBlocks += 1;
    }
    return { blocks, activeBlocks };
  }

  claim(): number {
    if (this.#matched === undefined) return noBlock;
    this.#tips.push(this.#matched);
    return this.#matched.id;
  }

  extend(tip: number, key: number): number {
    const parent = this.#blocks.get(tip);
    let block = key !== noKey ? this.#find(parent, key) : undefined;
    if (block === undefined) {
      if (this.#blocks.size >= this.total && !this.#evict()) return noBlock;
      block = { id: this.#nextId++, key, parent, releasedAt: 0 };
      this.#blocks.set(block.id, block);
    }
    if (parent !== undefined) this.#tips.splice(this.#tips.indexOf(parent), 1);
    this.#tips.push(block);
    return block.id;
  }

  seal(tip: number, key: number): number {
    const block = this.#blocks.get(tip);
    if (block === undefined) return noBlock;
    const same = key !== noKey ? this.#find(block.parent, key) : undefined;
    if (same === undefined) {
      block.key = key;
      return tip;
    }
    this.#tips.push(same);
    this.release(tip);
    return same.id;
  }

  release(tip: number): void {
    const block = this.#blocks.get(tip);
    if (block === undefined) return;
    this.#tips.splice(this.#tips.indexOf(block), 1);
    const active = this.#activeBlocks();
    for (let at: Block | undefined = block; at !== undefined && !active.has(at); at = at.parent) {
      if (at.key === noKey) this.#blocks.delete(at.id);
      else at.releasedAt = ++this.#releases;
    }
  }

  #activeBlocks(): Set<Block> {
    const active = new Set<Block>();
    for (const tip of this.#tips) {
      for (let block: Block | undefined = tip; block !== undefined; block = block.parent) active.add(block);
    }
    return active;
  }

  #find(parent: Block | undefined, key: number): Block | undefined {
    return [...this.#blocks.values()].find((block) => block.key === key && block.parent === parent);
  }

  #evict(): boolean {
    const active = this.#activeBlocks();
    const parents = new Set([...this.#blocks.values()].map((block) => block.parent));
    const leaves = [...this.#blocks.values()].filter((block) => !active.has(block) && !parents.has(block));
    const [oldest] = leaves.sort((a, b) => a.releasedAt - b.releasedAt);
    if (oldest === undefined) return false;
    return this.#blocks.delete(oldest.id);
  }
}

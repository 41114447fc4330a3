import { Links } from "./links.ts";

export interface TierConfig {
  readonly blocks: number;
  /** From this tier to the one above it, in bytes per second. */
  readonly bytesPerSecond: number;
}

/**
 * Slower memory below a rank's pool, fastest first: usually host memory, then disk. What the pool evicts sinks into the
 * first tier, what that drops (longest unused first) into the next, and what the last drops is gone.
 *
 *     pool --evicted--> host --dropped--> disk --dropped--> gone
 *      ^----loaded-------+-----------------+
 *
 * A load moves all its blocks over the links of every tier from the deepest one that it needs up to the pool; loads
 * share the links. Sinking goes the other way of the same full-duplex links, in the background, and costs no time here.
 */
export class CacheTiers {
  readonly #tiers: { readonly blocks: number; readonly keys: Set<number> }[];
  readonly #links: Links;
  readonly #bytesPerBlock: number;

  constructor(configs: readonly TierConfig[], bytesPerBlock: number) {
    this.#tiers = configs.map(({ blocks }) => ({ blocks, keys: new Set<number>() }));
    this.#links = new Links(configs.map(({ bytesPerSecond }) => bytesPerSecond));
    this.#bytesPerBlock = bytesPerBlock;
  }

  /** When the next load is over. */
  get nextWorkAtMs(): number {
    return this.#links.nextWorkAtMs;
  }

  /** Takes a block that the pool has evicted. */
  sink(key: number): void {
    let sinking: number | undefined = key;
    for (const { blocks, keys } of this.#tiers) {
      if (sinking === undefined) return;
      keys.delete(sinking);
      keys.add(sinking);
      sinking = undefined;
      if (keys.size > blocks) {
        for (const oldest of keys) {
          sinking = oldest;
          break;
        }
        if (sinking !== undefined) keys.delete(sinking);
      }
    }
  }

  /** How many blocks from `from` on, one after the other and before `limit`, some tier has. */
  match(keys: readonly number[], from: number, limit: number): number {
    let found = from;
    while (found < Math.min(limit, keys.length) && this.#tierOf(keys[found]!) >= 0) found += 1;
    return found - from;
  }

  /** Begins to load what `match` found. */
  load(id: number, keys: readonly number[], nowMs: number): void {
    let deepest = 0;
    for (const key of keys) {
      const tier = this.#tierOf(key);
      deepest = Math.max(deepest, tier);
      this.#tiers[tier]?.keys.delete(key);
      this.#tiers[tier]?.keys.add(key); // used now, so dropped last
    }
    const links = Array.from({ length: deepest + 1 }, (_, link) => link);
    this.#links.start(id, keys.length * this.#bytesPerBlock, links, nowMs);
  }

  cancel(id: number, nowMs: number): void {
    this.#links.cancel(id, nowMs);
  }

  /** The loads that are over. */
  step(nowMs: number): number[] {
    return this.#links.step(nowMs);
  }

  #tierOf(key: number): number {
    return this.#tiers.findIndex(({ keys }) => keys.has(key));
  }
}

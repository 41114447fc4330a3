/**
 * A change of what the prefix cache of an engine's rank holds. Keys are those of the requests. Blocks of answers that
 * nothing names have negative keys, which mean something within their engine only.
 */
export type KvEvent =
  | { readonly kind: "stored"; readonly rank: number; readonly parent: number; readonly keys: number[] }
  | { readonly kind: "removed"; readonly rank: number; readonly keys: number[] };

/** `parent` of a chain's first block. No block has this key. */
export const noParent = Number.MIN_SAFE_INTEGER;

/** Told of every block that enters or leaves the cache, and whenever a block becomes evictable. */
export interface KvListener {
  stored(key: number, parent: number): void;
  removed(key: number): void;
  evictable(): void;
}

/**
 * Collects changes as they happen, and batches them: chains in one event, and all removals between two releases in one.
 * Blocks that were stored since the last release are in use, so what is removed meanwhile was stored before: putting
 * the removals first changes nothing for a reader.
 */
export class KvEventLog implements KvListener {
  /** While true, changes are forgotten. */
  dropping = false;
  readonly #rank: number;
  #events: KvEvent[] = [];
  #lastStored = noParent;
  /** Since the last release: where its events begin, and the removals among them. */
  #start = 0;
  #removals: number[] | undefined;

  constructor(rank: number) {
    this.#rank = rank;
  }

  stored(key: number, parent: number): void {
    if (this.dropping) return;
    const last = this.#events.at(-1);
    if (last?.kind === "stored" && this.#events.length > this.#start && parent === this.#lastStored)
      last.keys.push(key);
    else this.#events.push({ kind: "stored", rank: this.#rank, parent, keys: [key] });
    this.#lastStored = key;
  }

  removed(key: number): void {
    if (this.dropping) return;
    if (this.#removals === undefined) {
      this.#removals = [key];
      this.#events.splice(this.#start, 0, { kind: "removed", rank: this.#rank, keys: this.#removals });
    } else this.#removals.push(key);
  }

  evictable(): void {
    this.#start = this.#events.length;
    this.#removals = undefined;
  }

  /** Moves what happened since the last call to the list. */
  moveTo(list: KvEvent[]): void {
    if (this.#events.length === 0) return;
    for (const event of this.#events) list.push(event);
    this.#events = [];
    this.evictable();
  }
}

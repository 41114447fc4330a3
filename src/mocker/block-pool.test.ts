import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type BlockPool, noBlock, noKey, PrefixBlockPool } from "./block-pool.ts";
import { ReferenceBlockPool } from "./block-pool-reference.ts";
import { type KvEvent, KvEventLog } from "./kv-events.ts";

/** Claims what is cached of the chain and extends it to its end. */
function hold(pool: BlockPool, keys: readonly number[]): number {
  let tip = pool.claim(pool.match(keys, keys.length));
  const cached = pool.match(keys, keys.length).blocks;
  for (const key of keys.slice(cached)) tip = pool.extend(tip, key);
  return tip;
}

describe("the block pool", () => {
  it("shares equal prefixes, and keeps released blocks until it needs the room", () => {
    const pool = new PrefixBlockPool(4, true);
    const first = hold(pool, [1, 2, 3]);
    const second = hold(pool, [1, 2, 4]);
    expect([pool.active, pool.cached, pool.available]).toEqual([4, 0, 0]);
    expect(pool.extend(second, 5)).toBe(noBlock);
    pool.release(first);
    expect([pool.active, pool.cached]).toEqual([3, 1]);
    expect(pool.match([1, 2, 3], 3)).toMatchObject({ blocks: 3, activeBlocks: 2 });
    expect(pool.extend(second, 5)).not.toBe(noBlock);
    expect(pool.match([1, 2, 3], 3)).toMatchObject({ blocks: 2, activeBlocks: 2 });
  });

  it("evicts leaves before what they stand on", () => {
    const pool = new PrefixBlockPool(4, true);
    pool.release(hold(pool, [1, 2, 3]));
    hold(pool, [7, 8]); // one free block, one eviction: 3
    expect(pool.match([1, 2, 3], 3).blocks).toBe(2);
  });

  it("finds a block that became full only if it is the first with that content", () => {
    const pool = new PrefixBlockPool(8, true);
    const first = pool.seal(pool.extend(noBlock, noKey), 1);
    const second = pool.seal(pool.extend(noBlock, noKey), 1);
    expect(second).toBe(first);
    expect(pool.active).toBe(1);
  });

  it("keeps a chain private whose key stands under another parent", () => {
    const pool = new PrefixBlockPool(8, true);
    hold(pool, [1, 2]);
    const wrong = pool.extend(pool.extend(noBlock, 2), 3); // 2 stands behind 1
    expect(pool.match([2, 3], 2).blocks).toBe(0);
    pool.release(wrong);
    expect([pool.active, pool.cached]).toEqual([2, 0]);
  });

  it("without prefix caching finds nothing and keeps nothing", () => {
    const pool = new PrefixBlockPool(2, false);
    const tip = hold(pool, [1, 2]);
    pool.release(tip);
    expect([pool.active, pool.cached]).toEqual([0, 0]);
    expect(pool.match([1, 2], 2).blocks).toBe(0);
  });

  it("grows without end when it is endless", () => {
    const pool = new PrefixBlockPool(Number.POSITIVE_INFINITY, true);
    const keys = Array.from({ length: 5000 }, (_, at) => at);
    pool.release(hold(pool, keys));
    expect(pool.match(keys, keys.length).blocks).toBe(5000);
    expect(pool.available).toBe(Number.POSITIVE_INFINITY);
  });
});

/** A chain is a way through a tree of keys in which key = parent * 4 + branch. */
const chain = fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 5 }).map((branches) => {
  let key = 0;
  return branches.map((branch) => {
    key = key * 4 + branch;
    return key;
  });
});

/** Keys below it have children that `allKeys` lists. */
const deepest = 4 ** 5;

type Action =
  | { readonly kind: "hold"; readonly keys: readonly number[] }
  | { readonly kind: "grow"; readonly sequence: number }
  | { readonly kind: "seal"; readonly sequence: number; readonly branch: number }
  | { readonly kind: "release"; readonly sequence: number };

const sequence = fc.nat(20);
const action: fc.Arbitrary<Action> = fc.oneof(
  fc.record({ kind: fc.constant("hold" as const), keys: chain }),
  fc.record({ kind: fc.constant("grow" as const), sequence }),
  fc.record({ kind: fc.constant("seal" as const), sequence, branch: fc.integer({ min: 1, max: 3 }) }),
  fc.record({ kind: fc.constant("release" as const), sequence }),
);

/** Sequences on one pool, and what each call answered. Block numbers differ between pools, so they are not part of it. */
class Sequences {
  readonly answers: unknown[] = [];
  readonly pool: BlockPool;
  #held: { tip: number; key: number; partial: boolean }[] = [];

  constructor(pool: BlockPool) {
    this.pool = pool;
  }

  run(step: Action): void {
    if (step.kind === "hold") this.#hold(step.keys);
    else if (this.#held.length > 0) {
      const at = step.sequence % this.#held.length;
      const held = this.#held[at]!;
      if (step.kind === "release") {
        this.pool.release(held.tip);
        this.#held.splice(at, 1);
      } else if (step.kind === "grow" && !held.partial) {
        const tip = this.pool.extend(held.tip, noKey);
        this.answers.push(tip === noBlock);
        if (tip !== noBlock) this.#held[at] = { ...held, tip, partial: true };
      } else if (step.kind === "seal" && held.partial && held.key < deepest) {
        const key = held.key * 4 + step.branch;
        this.#held[at] = { tip: this.pool.seal(held.tip, key), key, partial: false };
      }
    }
    this.answers.push([this.pool.active, this.pool.cached, this.pool.available]);
  }

  #hold(keys: readonly number[]): void {
    const match = this.pool.match(keys, keys.length);
    const { blocks, activeBlocks } = match;
    let tip = this.pool.claim(match);
    let key = keys[blocks - 1] ?? 0;
    this.answers.push([blocks, activeBlocks]);
    for (const next of keys.slice(blocks)) {
      const extended = this.pool.extend(tip, next);
      this.answers.push(extended === noBlock);
      if (extended === noBlock) break;
      tip = extended;
      key = next;
    }
    if (tip !== noBlock) this.#held.push({ tip, key, partial: false });
  }
}

describe("the block pool, against the reference", () => {
  it("answers the same, never holds more than the pool, and its events tell what it holds", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 12 }), fc.array(action, { maxLength: 60 }), (total, actions) => {
        const log = new KvEventLog(0);
        const fast = new Sequences(new PrefixBlockPool(total, true, log));
        const reference = new Sequences(new ReferenceBlockPool(total));
        const mirror = new Set<number>();
        for (const step of actions) {
          fast.run(step);
          reference.run(step);
          expect(fast.answers).toEqual(reference.answers);
          expect(fast.pool.active + fast.pool.cached).toBeLessThanOrEqual(total);
          const events: KvEvent[] = [];
          log.moveTo(events);
          apply(events, mirror);
        }
        for (const key of mirror) expect(isCached(fast.pool, key)).toBe(true);
        const found = allKeys().filter((key) => isCached(fast.pool, key));
        expect(new Set(found)).toEqual(mirror);
      }),
      { numRuns: 300 },
    );
  });
});

function apply(events: readonly KvEvent[], mirror: Set<number>): void {
  for (const event of events) {
    for (const key of event.keys) {
      expect(mirror.has(key)).toBe(event.kind === "removed");
      if (event.kind === "stored") mirror.add(key);
      else mirror.delete(key);
    }
  }
}

/** The way to a key in the tree of keys. */
function wayTo(key: number): number[] {
  const way: number[] = [];
  for (let at = key; at > 0; at = Math.floor(at / 4)) way.unshift(at);
  return way;
}

function isCached(pool: BlockPool, key: number): boolean {
  const way = wayTo(key);
  return pool.match(way, way.length).blocks === way.length;
}

function allKeys(): number[] {
  const keys: number[] = [];
  for (let depth = 0, level = [0]; depth < 6; depth++) {
    level = level.flatMap((key) => [key * 4 + 1, key * 4 + 2, key * 4 + 3]);
    keys.push(...level);
  }
  return keys;
}

import { createReadStream, existsSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { parseMooncake } from "../traces/mooncake.ts";
import { PrefixBlockPool } from "./block-pool.ts";

const folder = process.env.STATOR_TRACES;
const path = folder === undefined ? "" : join(folder, "mooncake_conversation.jsonl");
const why = "skipped: set STATOR_TRACES to the folder with Mooncake's mooncake_conversation.jsonl (FAST '25 release)";

/** Published hit rates of an LRU cache of so many 512-token blocks on this trace, in percent of all blocks. */
const anchors = [
  [1000, 4.5],
  [5000, 11.0],
  [10_000, 21.1],
  [30_000, 32.6],
  [50_000, 35.5],
] as const;

/** One request after the other; their last blocks count although they are not full, as in the publication. */
async function hitRate(blocks: number): Promise<number> {
  const pool = new PrefixBlockPool(blocks, true);
  let hits = 0;
  let all = 0;
  for await (const { blockIds } of parseMooncake(createReadStream(path, "utf8"))) {
    const match = pool.match(blockIds, blockIds.length);
    const cached = match.blocks;
    let tip = pool.claim(match);
    for (const id of blockIds.slice(cached)) tip = pool.extend(tip, id);
    pool.release(tip);
    hits += cached;
    all += blockIds.length;
  }
  return (100 * hits) / all;
}

it("the block pool has the published hit rates on Mooncake's conversation trace", async (context) => {
  if (!existsSync(path)) return context.skip(why);
  expect(await hitRate(Number.POSITIVE_INFINITY)).toBeCloseTo(36.64, 2);
  for (const [blocks, published] of anchors) {
    const measured = await hitRate(blocks);
    expect(Math.abs(measured - published), `${blocks} blocks: ${measured} %`).toBeLessThan(1);
  }
});

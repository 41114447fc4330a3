import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type Random, seededRandom } from "stator/protocol";

/** A row in Mooncake's format. */
export interface Row {
  readonly timestamp: number;
  readonly input_length: number;
  readonly output_length: number;
  readonly hash_ids: readonly number[];
}

const TRACE = "mooncake_conversation.jsonl";
const BLOCK_TOKENS = 512;
/** Requests that come closer together may overtake each other on their way, and round-robin would deal them differently. */
const MIN_GAP_MS = 20;

/** Where lengths and sharing come from. */
export function sourceOf(requests: number): { readonly name: string; readonly rows: readonly Row[] } {
  const path = process.env.STATOR_TRACES && join(process.env.STATOR_TRACES, TRACE);
  if (path && existsSync(path)) {
    const lines = readFileSync(path, "utf8").split("\n", requests);
    return { name: TRACE, rows: lines.map((line) => JSON.parse(line) as Row) };
  }
  return { name: `generated (STATOR_TRACES has no ${TRACE})`, rows: generated(requests, seededRandom(3)) };
}

/**
 * The same requests at Poisson arrivals, so many per second. The trace's own arrivals are bursts of equal timestamps, whose
 * order a network does not keep.
 */
export function timed(rows: readonly Row[], perSecond: number): Row[] {
  const random = seededRandom(4);
  let atMs = 0;
  return rows.map((row) => {
    const timestamp = Math.round(atMs);
    atMs += Math.max(MIN_GAP_MS, (-Math.log(1 - random.next()) * 1000) / perSecond);
    return { ...row, timestamp };
  });
}

/** Long prompts that share a system prompt, and every third with the one before it. */
function generated(requests: number, random: Random): Row[] {
  let fresh = 1;
  let before: readonly number[] = [0];
  return Array.from({ length: requests }, (_, i) => {
    const input_length = 4_000 + random.below(20_000);
    const blocks = Math.ceil(input_length / BLOCK_TOKENS);
    const shared = i % 3 === 2 ? before.slice(0, Math.max(1, Math.min(before.length, blocks) - 1)) : [0];
    const hash_ids = [...shared, ...Array.from({ length: blocks - shared.length }, () => fresh++)];
    before = hash_ids;
    return { timestamp: 0, input_length, output_length: 50 + random.below(600), hash_ids };
  });
}

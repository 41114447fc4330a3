import { createReadStream, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { ReplayReport } from "../../src/simulator/report.ts";
import { parseMooncake } from "../../src/traces/mooncake.ts";
import { StatorProcess, temporaryFolder } from "../harness/stator-process.ts";

const traces = process.env.STATOR_TRACES;
const published = traces !== undefined && existsSync(join(traces, "mooncake_conversation.jsonl"));
const why = "skipped: set STATOR_TRACES to the folder with Mooncake's mooncake_conversation.jsonl (FAST '25 release)";

async function replay(args: readonly string[]): Promise<ReplayReport> {
  const env = { STATOR_TRACES: traces ?? "" };
  const run = new StatorProcess(["replay", "mooncake_conversation", "--json", ...args], { env });
  expect(await run.exited(120_000), run.describe()).toEqual({ code: 0, signal: null });
  const report = JSON.parse(run.stdout) as Record<string, unknown>;
  const virtual = Object.entries(report).filter(([name]) => !name.startsWith("wall_"));
  return Object.fromEntries(virtual) as unknown as ReplayReport;
}

it("8 workers answer all of it, bit by bit the same twice", { timeout: 300_000 }, async (context) => {
  if (!published) return context.skip(why);
  const one = await replay(["--workers", "8", "--router-mode", "power-of-two"]);
  const other = await replay(["--workers", "8", "--router-mode", "power-of-two"]);
  expect(one).toEqual(other);
  expect(one).toMatchObject({ num_requests: 12_031, completed_requests: 12_031 });
});

// Published for 16 prefill workers of 8 A100 each, Llama-2-70B: 19.65 s at random, 5.27 s by load (Mooncake, FAST '25).
it("the mean TTFT of random placement is at least twice that by load", { timeout: 300_000 }, async (context) => {
  if (!published) return context.skip(why);
  const model = join(temporaryFolder(), "config.json");
  const shape = { hidden_size: 8192, num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8 };
  writeFileSync(model, JSON.stringify({ ...shape, intermediate_size: 28_672, vocab_size: 32_000 }));
  const hardware = [
    "--timing",
    "roofline",
    "--model-config",
    model,
    "--hardware",
    "a100_sxm",
    "--tensor-parallel",
    "8",
  ];
  const fleet = ["--prefill-workers", "16", "--decode-workers", "16", ...hardware];
  const random = await replay([...fleet, "--router-mode", "random"]);
  const byLoad = await replay([...fleet, "--router-mode", "least-loaded"]);
  expect(random.ttft!.mean / byLoad.ttft!.mean).toBeGreaterThan(2);
});

const BLOCK_TOKENS = 512;

/** Published hit rates of an LRU cache of so many 512-token blocks, in percent of all blocks; the last one is endless. */
const cacheAnchors = [
  [1000, 4.5],
  [5000, 11.0],
  [10_000, 21.1],
  [30_000, 32.6],
  [50_000, 35.5],
  [1_000_000, 36.64],
] as const;

/**
 * One engine whose passes take a thousandth of a millisecond, so that requests are admitted in the order of the trace and
 * hardly overlap: what is left is the cache. Its way is not quite that of the publication, which takes one prompt after
 * the other and counts blocks, the last one too, though it is not full:
 *
 *     the report is in tokens          hits are turned into blocks; all blocks are those that the trace names
 *     only full blocks are cached,     the same prompt again misses its last block: 36.60 instead of 36.64 % in an
 *     one token is always computed     endless cache
 *     answers need blocks too          they push out some prompts, and pin blocks while they grow: about half a
 *                                      point less than with answers of one token
 */
it("one engine's cache has the published hit rates, whatever its size", { timeout: 900_000 }, async (context) => {
  if (!published) return context.skip(why);
  let blocksOfTrace = 0;
  const source = createReadStream(join(traces, "mooncake_conversation.jsonl"), "utf8");
  for await (const { blockIds } of parseMooncake(source)) blocksOfTrace += blockIds.length;
  for (const [blocks, percent] of cacheAnchors) {
    const pool = ["--block-size", String(BLOCK_TOKENS), "--blocks", String(blocks)];
    const report = await replay(["--workers", "1", "--timing", instantTiming(), ...pool]);
    // Only then are the tokens of the report those of the trace, and are first admissions all that there were.
    expect(report).toMatchObject({ completed_requests: 12_031, preemptions: 0 });
    const hitTokens = report.first_admission_prefix_cache_reused_ratio * report.total_input_tokens;
    const measured = (100 * hitTokens) / BLOCK_TOKENS / blocksOfTrace;
    expect(Math.abs(measured - percent), `${blocks} blocks: ${measured} %, published ${percent} %`).toBeLessThan(1);
  }
});

/** A timing table by which every pass takes 0.001 ms. */
function instantTiming(): string {
  const path = join(temporaryFolder(), "instant.json");
  const two = [0.001, 0.001];
  const table = { prefillTokens: [1, 2], prefillMs: two, decodeActiveTokens: [1, 2], decodeContextTokens: [1, 2] };
  writeFileSync(path, JSON.stringify({ ...table, decodeMs: [two, two] }));
  return path;
}

import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { ReplayReport } from "../../src/simulator/report.ts";
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

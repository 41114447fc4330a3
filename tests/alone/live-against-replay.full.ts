import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import type { LoadReport } from "../../src/loadgen/load-report.ts";
import { seededRandom } from "../../src/protocol/random.ts";
import type { ReplayReport } from "../../src/simulator/report.ts";
import { ManyWorkers } from "../harness/many-workers.ts";
import { StatorProcess, temporaryFolder } from "../harness/stator-process.ts";

// `npm run bench -- mocker` is the measurement, with 5 %; this one has to hold on a machine that does other things, too.
const WORKERS = 8;
const REQUESTS = 100;
const PER_SECOND = 2.5;
const ALLOWED = 0.1;
const TRIES = 3;

let many: ManyWorkers | undefined;
afterAll(() => many?.stop());

async function json<T>(args: readonly string[]): Promise<T> {
  const run = new StatorProcess([...args, "--json"]);
  expect(await run.exited(180_000), run.describe()).toEqual({ code: 0, signal: null });
  return JSON.parse(run.stdout) as T;
}

/** Long prompts, so that the way through the frontend is short beside the prefill; every third repeats most of the one before. */
function workload(): string {
  const random = seededRandom(11);
  let [fresh, atMs] = [1, 0];
  let before: number[] = [0];
  const rows = Array.from({ length: REQUESTS }, (_, i) => {
    const input_length = 8_000 + random.below(24_000);
    const blocks = Math.ceil(input_length / 512);
    const shared = i % 3 === 2 ? before.slice(0, Math.min(before.length, blocks) - 1) : [0];
    const hash_ids = [...shared, ...Array.from({ length: blocks - shared.length }, () => fresh++)];
    before = hash_ids;
    const timestamp = Math.round(atMs);
    atMs += Math.max(20, (-Math.log(1 - random.next()) * 1000) / PER_SECOND);
    return { timestamp, input_length, output_length: 30 + random.below(250), hash_ids };
  });
  const path = join(temporaryFolder(), "workload.jsonl");
  writeFileSync(path, rows.map((row) => JSON.stringify(row)).join("\n"));
  return path;
}

it("live engines at speed-up 1 and the replay of the same requests agree on TTFT and ITL", async () => {
  const trace = workload();
  const offline = await json<ReplayReport>(["replay", trace, "--workers", String(WORKERS)]);
  const busy = offline.workers.reduce((sum, { busy_ratio }) => sum + busy_ratio, 0) / WORKERS;
  expect(busy).toBeGreaterThan(0.3);
  expect(busy).toBeLessThan(0.6);

  // A machine that is busy for a while spoils a try; a difference between the two spoils all of them.
  const tries: string[] = [];
  for (let attempt = 0; attempt < TRIES; attempt++) {
    await many?.stop(); // a fleet that knows the prompts already would have another workload
    many = await ManyWorkers.start({ count: WORKERS, discovery: `file:${temporaryFolder()}/d`, speedup: 1 });
    const target = ["--url", many.frontend.url, "--endpoint", "completions", "--byte-tokens"];
    const live = await json<LoadReport>(["bench", "serve", ...target, "--trace", trace]);
    for (const count of ["completed_requests", "total_input_tokens", "total_output_tokens"] as const) {
      expect(live[count]).toBe(offline[count]);
    }
    expect(live.prefix_cache_reused_ratio).toBeCloseTo(offline.first_admission_prefix_cache_reused_ratio, 2);
    const [ttft, itl] = (["ttft", "itl"] as const).map((metric) => live[metric]!.mean / offline[metric]!.mean);
    if ([ttft!, itl!].every((ratio) => Math.abs(ratio - 1) < ALLOWED)) return;
    const late = live.schedule_lateness!.p99.toFixed(0);
    tries.push(`ttft x ${ttft!.toFixed(3)}, itl x ${itl!.toFixed(3)}; requests sent up to ${late} ms late`);
  }
  expect.fail(`live against offline, ${TRIES} tries: ${tries.join(" | ")}`);
}, 400_000);

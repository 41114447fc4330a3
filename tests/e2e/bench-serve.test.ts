import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { LoadReport } from "../../src/loadgen/load-report.ts";
import { StatorProcess, StatorServer, temporaryFolder } from "../harness/stator-process.ts";

let server: StatorServer;
beforeAll(async () => {
  server = await StatorServer.serve(["--engine", "echo", "--token-rate", "200"]);
});
afterAll(() => server?.stop());

async function bench(args: readonly string[]): Promise<LoadReport> {
  const run = new StatorProcess(["bench", "serve", "--url", server.url, "--json", ...args]);
  expect(await run.exited(60_000), run.describe()).toEqual({ code: 0, signal: null });
  return JSON.parse(run.stdout) as LoadReport;
}

it("a closed loop: lengths as asked, usage as the server counts it, goodput", async () => {
  const report = await bench([
    ...["--requests", "40", "--concurrency", "8", "--input-tokens", "1000", "--output-tokens", "30"],
    ...["--slo-ttft-ms", "60000"],
  ]);
  expect(report).toMatchObject({ completed_requests: 40, failed_requests: 0, goodput_ratio: 1 });
  expect(report.total_output_tokens).toBe(40 * 30);
  // The echo engine counts bytes; words differ in length, and the template adds a little.
  expect(report.total_input_tokens / 40).toBeGreaterThan(850);
  expect(report.total_input_tokens / 40).toBeLessThan(1_150);
  expect(report.tpot!.mean).toBeGreaterThan(4); // 5 ms per token is the engine's pace
});

it("a trace with shared prefixes and sessions, faster than recorded", async () => {
  const folder = temporaryFolder();
  const rows = Array.from({ length: 20 }, (_, i) => ({
    timestamp: i * 100,
    input_length: 40,
    output_length: 5,
    hash_ids: [1],
    session_id: `s${i % 5}`,
  }));
  const trace = join(folder, "trace.jsonl");
  writeFileSync(trace, rows.map((row) => JSON.stringify(row)).join("\n"));
  const report = await bench(["--trace", trace, "--speed", "10"]);
  expect(report).toMatchObject({ num_requests: 20, completed_requests: 20 });
  writeFileSync(trace, `${readFileSync(trace, "utf8")}\n{"timestamp": 5}`);
  const bad = new StatorProcess(["bench", "serve", "--url", server.url, "--trace", trace]);
  expect((await bad.exited()).code).not.toBe(0);
  expect(bad.stderr).toMatch(/Line 21.*input_length/);
  expect(bad.stderr).not.toContain("    at ");
});

it("says what is wrong: no server, a bad option", async () => {
  const nobody = new StatorProcess(["bench", "serve", "--url", "http://127.0.0.1:1"]);
  expect((await nobody.exited()).code).toBe(1);
  expect(nobody.stderr).toMatch(/does not answer.*Is the server running/);
  for (const [arg, value, words] of [
    ["--url", "127.0.0.1:8000", /--url 127.0.0.1:8000: write a whole address/],
    ["--trace", "no-such-file", /--trace no-such-file: cannot be read \(ENOENT\)/],
  ] as const) {
    const wrong = new StatorProcess(["bench", "serve", arg, value]);
    expect((await wrong.exited()).code).toBe(78);
    expect(wrong.stderr).toMatch(words);
    expect(wrong.stderr).not.toContain("    at ");
  }
  const bad = new StatorProcess(["bench", "serve", "--shared-prefix", "2"]);
  expect((await bad.exited()).code).toBe(2);
  expect(bad.stderr).toMatch(/--shared-prefix.*It must be a number from 0 to 1/);
});

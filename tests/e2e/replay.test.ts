import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { beforeAll, expect, it } from "vitest";
import { StatorProcess, temporaryFolder } from "../harness/stator-process.ts";

let trace: string;
beforeAll(() => {
  trace = join(temporaryFolder(), "chat.jsonl");
  const rows = Array.from({ length: 40 }, (_, i) => ({
    timestamp: i * 50,
    input_length: 1500,
    output_length: 20 + i,
    hash_ids: [i % 4, 100 + (i % 4), 200 + i],
    session_id: `s${i % 20}`,
  }));
  writeFileSync(trace, rows.map((row) => JSON.stringify(row)).join("\n"));
});

async function replay(args: readonly string[], env: Record<string, string> = {}): Promise<Record<string, unknown>> {
  const run = new StatorProcess(["replay", ...args, "--json"], { env });
  expect(await run.exited(), run.describe()).toEqual({ code: 0, signal: null });
  return JSON.parse(run.stdout) as Record<string, unknown>;
}

function withoutWall(report: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(report).filter(([name]) => !name.startsWith("wall_")));
}

it("two runs differ in nothing but what the machine did", async () => {
  const args = ["--workers", "3", "--router-mode", "power-of-two", "--seed", "7", "--slo-ttft-ms", "200"];
  const [one, other] = [await replay([trace, ...args]), await replay([trace, ...args])];
  expect(withoutWall(one)).toEqual(withoutWall(other));
  expect(one).toMatchObject({ num_requests: 40, completed_requests: 40, total_output_tokens: 40 * 20 + (39 * 40) / 2 });
  expect(one.goodput_ratio).toBeGreaterThan(0);
  expect(one.ttft).toMatchObject({ mean: expect.any(Number), p99: expect.any(Number) });
});

it("a trace by its name in STATOR_TRACES, a closed loop, another engine, the first requests only", async () => {
  const args = ["chat", "--concurrency", "4", "--flavour", "sglang", "--requests", "10", "--arrival-speed", "2"];
  const report = await replay(args, { STATOR_TRACES: dirname(trace) });
  expect(report).toMatchObject({ num_requests: 10, completed_requests: 10 });
});

it("a workload that a YAML file describes, generated or with the structure of a recorded trace", async () => {
  const folder = temporaryFolder();
  const [generated, synthesized] = [join(folder, "sine.yaml"), join(folder, "more.yaml")];
  writeFileSync(
    generated,
    "{ requests: 50, arrivals: { sine: { min: 5, max: 20, periodSeconds: 10 } }, input: { mean: 900, sigma: 1 }, output: 20, turns: 2, sharedPrefixRatio: 0.5 }",
  );
  writeFileSync(synthesized, "{ from: chat, requests: 60, speedup: 2 }");
  const one = await replay([generated, "--workers", "2"]);
  expect(one).toMatchObject({ completed_requests: 50, total_output_tokens: 1_000 });
  expect(one.prefix_cache_reused_ratio).toBeGreaterThan(0.2);
  const more = await replay([synthesized, "--workers", "2"], { STATOR_TRACES: dirname(trace) });
  expect(more).toMatchObject({ completed_requests: 60 });
  expect(more.prefix_cache_reused_ratio).toBeGreaterThan(0.2);
});

it("prefill and decode apart, and the ladder of fleets", async () => {
  const split = ["--prefill-workers", "1", "--decode-workers", "2"];
  const report = await replay([trace, ...split]);
  expect(report).toMatchObject({ completed_requests: 40, total_output_tokens: 40 * 20 + (39 * 40) / 2 });
  const { ladder } = (await replay([trace, "--ladder", ...split, "--slo-ttft-ms", "500"])) as {
    ladder: Record<string, unknown>[];
  };
  expect(ladder.map(({ rung }) => rung)).toEqual([
    "one worker",
    "3, round-robin",
    "3, least-loaded",
    "1P 2D, least-loaded",
  ]);
  for (const rung of ladder) expect(rung).toMatchObject({ completed_requests: 40, goodput_ratio: expect.any(Number) });
});

it("a table for people", async () => {
  const run = new StatorProcess(["replay", trace, "--workers", "2"]);
  expect((await run.exited()).code).toBe(0);
  expect(run.stdout).toMatch(/40 of 40 completed/);
  expect(run.stdout).toMatch(/^ttft +\d/m);
  expect(run.stdout).toMatch(/^worker-2 /m);
});

it("says what is wrong: no such trace and where to get it, a broken one, options that do not fit", async () => {
  const broken = join(dirname(trace), "broken.jsonl");
  writeFileSync(broken, '{"timestamp": 0, "input_length": 5}\n');
  const cases: readonly (readonly [string[], RegExp])[] = [
    [["conversation"], /no trace "conversation".*kvcache-ai\/Mooncake/],
    [[broken], /Line 1.*output_length/],
    [["/dev/null"], /\/dev\/null has no requests/],
    [[trace, "--prefill-workers", "2"], /belong together/],
    [[trace, "--ladder"], /--ladder needs --workers/],
    [[trace, "--timing", "roofline"], /--model-config/],
    [[trace, "--timing", join(dirname(trace), "none.json")], /--timing .*none\.json/],
  ];
  for (const [args, message] of cases) {
    const run = new StatorProcess(["replay", ...args]);
    expect((await run.exited()).code, run.describe()).toBe(78);
    expect(run.stderr).toMatch(message);
    expect(run.stderr).not.toContain("    at ");
  }
});

it("a fault script: lost requests go on elsewhere, the same way each time", async () => {
  const script = join(dirname(trace), "faults.yaml");
  writeFileSync(
    script,
    "- { at: 0.5s, kill: worker-2, restartAfter: 1s }\n- { at: 300ms, freeze: worker-1, for: 1s }\n",
  );
  const args = [trace, "--workers", "3", "--faults", script];
  const [one, other] = [await replay(args), await replay(args)];
  expect(withoutWall(one)).toEqual(withoutWall(other));
  expect(one).toMatchObject({ completed_requests: 40, failed_requests: 0 });
  expect(one.migrations).toBeGreaterThan(0);
  expect(one.decode_worker_seconds).toBeCloseTo(((one.duration_ms as number) / 1000) * 3 - 1, 6);
});

it.each([
  ["- { at: 1s, kil: worker-1 }", [], /faults\.yaml: Unknown key "kil" in faults\[0\]; did you mean kill\?/],
  [
    "- { at: 1s, kill: worker-9 }",
    [],
    /faults\[0\]\.kill: there is no worker "worker-9"; the workers are worker-1, worker-2\./,
  ],
  ["- { at: 1s, kill: [", [], /--faults .*broken-faults\.yaml: /],
  ["[]", ["--ladder"], /--faults and --ladder do not go together/],
])("a fault script that is wrong is refused: %s", async (text, more, message) => {
  const script = join(dirname(trace), "broken-faults.yaml");
  writeFileSync(script, text);
  const run = new StatorProcess(["replay", trace, "--workers", "2", "--faults", script, ...more]);
  expect((await run.exited()).code, run.describe()).not.toBe(0);
  expect(run.stderr).toMatch(message);
  expect(run.stderr).not.toMatch(/\n\s+at /);
});

it("several configurations side by side, as a table, a page and lines", async () => {
  const folder = temporaryFolder();
  const compare = join(folder, "fleets.yaml");
  writeFileSync(join(folder, "slow.yaml"), "- { at: 100, slowDown: all, factor: 3 }\n");
  writeFileSync(
    compare,
    [
      "- { name: as asked }",
      "- { name: apart <1>, prefillWorkers: 1, decodeWorkers: 1 }",
      "- { name: slow, workers: 3, faults: slow.yaml, seed: 2 }",
    ].join("\n"),
  );
  const [html, lines] = [join(folder, "page.html"), join(folder, "requests.jsonl")];
  const args = ["--workers", "2", "--compare", compare, "--html", html, "--requests-out", lines, "--slo-e2e-ms", "900"];
  const { compare: reports } = (await replay([trace, ...args])) as { compare: Record<string, unknown>[] };
  expect(reports.map(({ name }) => name)).toEqual(["as asked", "apart <1>", "slow"]);
  expect(reports.map(({ workers }) => (workers as unknown[]).length)).toEqual([2, 2, 3]);
  for (const report of reports) expect(report).toMatchObject({ completed_requests: 40 });
  const alone = await replay([trace, "--workers", "2", "--slo-e2e-ms", "900"]);
  expect({ name: "as asked", ...withoutWall(alone) }).toEqual(reports[0]);

  const page = readFileSync(html, "utf8");
  expect(page).toContain("apart &lt;1&gt;");
  expect(page).toContain("faults ");
  const rows = readFileSync(lines, "utf8").trim().split("\n");
  expect(rows).toHaveLength(120);
  const parsed = rows.map((row) => JSON.parse(row) as Record<string, unknown>);
  expect(parsed.filter(({ configuration }) => configuration === "slow")).toHaveLength(40);
  expect(parsed[0]).toMatchObject({
    configuration: "as asked",
    request: 0,
    session: "s0",
    outcome: "completed",
    output_tokens: 20,
  });
  const met = parsed.slice(0, 40).filter(({ met_slo }) => met_slo === true).length;
  expect(met / 40).toBe(reports[0]!.goodput_ratio);
  expect(readdirSync(folder).sort()).toEqual(["fleets.yaml", "page.html", "requests.jsonl", "slow.yaml"]);

  const table = new StatorProcess(["replay", trace, "--compare", compare]);
  expect((await table.exited()).code).toBe(0);
  expect(table.stdout).toMatch(/^as asked .*\n^apart <1> .*\n^slow /m);
});

it("says what is wrong with an output before it simulates", async () => {
  const folder = temporaryFolder();
  const cases: readonly (readonly [string[], RegExp])[] = [
    [["--html", folder], /--html .*: this is a folder/],
    [["--html", join(folder, "no/such/page.html")], /--html .*cannot be written \(ENOENT\)/],
    [["--html", join(folder, "x"), "--requests-out", join(folder, "x")], /name the same file/],
    [["--compare", join(folder, "none.yaml")], /--compare .*none\.yaml: ENOENT/],
    [["--compare", join(folder, "x"), "--ladder", "--workers", "2"], /either --ladder or --compare/],
  ];
  for (const [args, message] of cases) {
    const run = new StatorProcess(["replay", trace, ...args]);
    expect((await run.exited()).code, run.describe()).toBe(78);
    expect(run.stderr).toMatch(message);
    expect(run.stderr).not.toContain("    at ");
  }
  expect(readdirSync(folder)).toEqual([]);
});

it("a reader that has enough (`| head`) is no error", async () => {
  // More than the pipe holds: the write is still going on when the reader leaves.
  const run = new StatorProcess(["replay", trace, "--workers", "3000"]);
  run.child.stdout!.once("data", () => run.child.stdout!.destroy());
  expect(await run.exited(), run.describe()).toEqual({ code: 0, signal: null });
  expect(run.stderr).toBe("");
});

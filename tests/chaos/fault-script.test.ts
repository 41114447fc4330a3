import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { readStream } from "../harness/sse.ts";
import { StatorProcess, StatorServer, temporaryFolder, until } from "../harness/stator-process.ts";

/*
 * A fault script does to a running fleet what it says, at its times, and no client sees any of it.
 */

const mocker = ["--engine", "mocker", "--set", "mocker.timing=fixed", "--set", "mocker.decodeMs=20"];
const TOKENS = 300; // six seconds of a stream

/** The text is that of the prompt, on whatever worker. */
async function answer(server: StatorServer, i: number, tokens: number) {
  const response = await server.post("/v1/chat/completions", {
    model: "stator-mocker",
    messages: [{ role: "user", content: `Request ${i}: ${"of rivers and light ".repeat(i % 7)}` }],
    max_tokens: tokens,
    ignore_eos: true,
    stream: true,
    stream_options: { include_usage: true },
  });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const { text, error, done, chunks } = await readStream(response);
  return { text, error: error?.code, done, tokens: chunks.at(-1)?.usage?.completion_tokens };
}

it("a kill, a freeze, a slow-down and a link that is cut for long, under streams that all come out whole", async () => {
  const script = join(temporaryFolder(), "faults.yaml");
  // Late enough that everything is up, also on a slow machine; streams run from the start on until all is over.
  writeFileSync(
    script,
    `
- { at: 10s, kill: worker-1, restartAfter: 1s }
- { at: 11s, slowDown: [worker-2, worker-3], factor: 3, for: 3s }
- { at: 12s, freeze: worker-2, for: 1500ms }
- { at: 12200ms, dropEvents: all, for: 900 }
- { at: 13.3s, cutLink: worker-3, for: 14s }
`,
  );
  const server = await StatorServer.serve([
    ...mocker,
    "--workers",
    "3",
    "--faults",
    script,
    "--set",
    "log.format=json",
  ]);
  const isOver = (): boolean => /"msg":"fault over: cutLink"/.test(server.stderr);
  let ids = 0;
  const given: { id: number; outcome: Awaited<ReturnType<typeof answer>> }[] = [];
  const client = async (): Promise<void> => {
    while (!isOver() && server.child.exitCode === null) {
      const id = ids++;
      given.push({ id, outcome: await answer(server, id, TOKENS) });
    }
  };
  await Promise.all(Array.from({ length: 9 }, client));
  await until(
    async () => Object.values(await server.inhibited()).filter((reason) => reason === null).length === 3,
    60_000,
    () => server.describe(),
  );

  const calm = await StatorServer.serve([...mocker, "--workers", "1", "--speedup", "100"]);
  for (const { id, outcome } of given) {
    expect(outcome).toEqual(await answer(calm, id, TOKENS));
    expect(outcome).toMatchObject({ error: undefined, done: true, tokens: TOKENS });
  }
  expect(given.length).toBeGreaterThan(20);

  const lines = server.stderr.split("\n").filter((line) => line.includes('"msg":"fault'));
  const told = lines.map((line) => JSON.parse(line) as { part: string; msg: string });
  const of = (worker: string): string[] =>
    told.filter(({ part }) => part === worker).map(({ msg }) => msg.replace(/^fault(s hold)?/, "").split(";")[0]!);
  expect(of("worker-1").filter((msg) => msg.includes("kill"))).toEqual([": kill"]);
  expect(of("worker-2")).toEqual([
    ...[": slowDown", ": freeze", ": dropEvents", " over: dropEvents", " over: freeze", " over: slowDown"],
  ]);
  expect(of("worker-3")).toEqual([
    ...[": slowDown", ": dropEvents", " over: dropEvents", ": cutLink", " over: slowDown", " over: cutLink"],
  ]);
  // The killed one's streams, and those of the one that was cut off, have moved.
  const moved = new Set(
    [...server.stderr.matchAll(/"from":"(worker-\d)".*"msg":"sequence migrated"/g)].map((m) => m[1]),
  );
  expect([...moved].sort()).toEqual(["worker-1", "worker-3"]);
}, 150_000);

it("a script that cannot be followed ends the command with the reason", async () => {
  const folder = temporaryFolder();
  const script = join(folder, "faults.yaml");
  const worker = ["worker", ...mocker, "--worker-id", "w", "--discovery", `file:${folder}/d`, "--faults", script];
  for (const [args, text, message] of [
    [
      ["serve", ...mocker, "--faults", script],
      "- { at: 1s, kill: worker-7 }",
      /no worker "worker-7".*worker-1, worker-2/,
    ],
    [["serve", "--engine", "echo", "--faults", script], "- { at: 1s, freeze: all }", /only the engine mocker/],
    [["serve", ...mocker, "--discovery", "memory", "--faults", script], "- { at: 1s, kill: all }", /no processes/],
    [worker, "- { at: 1s, freez: all }", /Unknown key "freez" in faults\[0\]; did you mean freeze\?/],
    [[...worker, "--count", "3"], "- { at: 1s, cutLink: w-2 }", /w-2 shares its process/],
    [[...worker, "--faults", `${folder}/none.yaml`], "", /none\.yaml: ENOENT/],
  ] as const) {
    writeFileSync(script, text);
    const stator = new StatorProcess(args);
    expect({ code: (await stator.exited()).code, text: stator.stderr }).toMatchObject({ code: 78 });
    expect(stator.stderr).toMatch(message);
    expect(stator.stderr).not.toMatch(/\n\s+at /);
  }
}, 90_000);

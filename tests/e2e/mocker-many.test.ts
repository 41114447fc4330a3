import { afterEach, expect, it } from "vitest";
import { ManyWorkers } from "../harness/many-workers.ts";
import { StatorProcess, StatorServer, temporaryFolder } from "../harness/stator-process.ts";

const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

it("worker --count 300: one process, 300 workers that register, stream, answer for themselves and leave", async () => {
  const many = await ManyWorkers.start({ count: 300, discovery: `file:${temporaryFolder()}/d` });
  started.push(many);
  await many.expectStreams(200);
  expect(many.worker.stderr.trim().split("\n").length).toBeLessThan(5);
  expect(await many.system("/health")).toMatchObject({
    status: 200,
    body: { status: "ready", parts: { "workers sim-1 to sim-300": "ready" } },
  });
  expect((await many.system("/engine/sim-300/loads")).body).toMatchObject({ running: 0, hostRunning: 0 });
  expect(await many.system("/engine/sim-301/loads")).toMatchObject({
    status: 404,
    body: { error: { message: expect.stringMatching(/\/engine\/sim-1\/loads.*\(300 workers\)/) } },
  });
  // An action on one is an action on no other.
  await many.system("/engine/sim-7/freeze", { ms: 3_600_000 });
  const ask = (workerId: string, signal: AbortSignal) => {
    const body = { model: "stator-mocker", prompt: "x", max_tokens: 2 };
    return many.frontend.post("/v1/completions", body, { headers: { "x-stator-worker-id": workerId }, signal });
  };
  const frozen = new AbortController();
  const asked = expect(ask("sim-7", frozen.signal)).rejects.toThrow();
  expect((await ask("sim-8", AbortSignal.timeout(20_000))).status).toBe(200);
  expect((await many.system("/engine/sim-8/loads")).body).toMatchObject({ running: 0 });
  frozen.abort();
  await asked;
  await many.expectEnd();
}, 120_000);

it("serve --discovery memory holds 300 workers, and says so in a line", async () => {
  const args = ["--engine", "mocker", "--discovery", "memory", "--workers", "300", "--speedup", "10"];
  const server = await StatorServer.serve(args);
  started.push(server);
  expect(server.stdout).toContain("300 (worker-1 to worker-300)");
  expect((await server.workers()).length).toBe(300);
  const answers = Array.from({ length: 100 }, () =>
    server.post("/v1/completions", { model: "stator-mocker", prompt: "x", max_tokens: 5 }),
  );
  const ids = (await Promise.all(answers)).map(({ headers }) => headers.get("x-stator-worker-id"));
  expect(new Set(ids).size).toBe(100);
}, 120_000);

it.each([
  [["worker", "--engine", "llama", "--count", "2"], /worker\.count = 2: only the engines mocker and echo .* not llama/],
  [["worker", "--engine", "mocker", "--count", "0"], /worker\.count/],
  [["serve", "--engine", "mocker", "--workers", "2000"], /workers = 2000: .* 256 processes.*--count 2000/],
] as const)("%j is refused with the way out", async (args, message) => {
  const stator = new StatorProcess([...args, "--discovery", `file:${temporaryFolder()}/d`]);
  expect((await stator.exited()).code).toBe(78);
  expect(stator.stderr).toMatch(message);
});

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readStream } from "../harness/sse.ts";
import { StatorProcess, StatorServer, StatorWorker, temporaryFolder, until } from "../harness/stator-process.ts";

const chat = "/v1/chat/completions";
const messages = [{ role: "user", content: "Hello" }];

describe("stator serve with the built-in model", () => {
  let server: StatorServer;
  beforeAll(async () => {
    server = await StatorServer.serve([]);
  });
  afterAll(() => server?.stop());

  it("prints one screen with URL, model, workers and a curl that works", () => {
    expect(server.stdout).toMatch(/URL\s+http:\/\/127\.0\.0\.1:\d+\/v1/);
    expect(server.stdout).toMatch(/Model\s+stator-builtin/);
    expect(server.stdout).toMatch(/Workers\s+2/);
    expect(server.stdout).toContain(`curl ${server.url}/v1/chat/completions`);
  });

  it("streams what it answers in one piece", async () => {
    const body = { model: "stator-builtin", messages, max_tokens: 40, temperature: 0 };
    const unary = (await (await server.post(chat, body)).json()) as {
      choices: { message: { content: string }; finish_reason: string }[];
    };
    const stream = await readStream(await server.post(chat, { ...body, stream: true }));
    expect(stream.done).toBe(true);
    expect(stream.text).toBe(unary.choices[0]!.message.content);
    expect(stream.finishReasons).toEqual([unary.choices[0]!.finish_reason]);
    expect(stream.chunks[0]!.choices[0]!.delta).toMatchObject({ role: "assistant", content: "" });
    for (const chunk of stream.chunks)
      for (const choice of chunk.choices) expect(choice).toHaveProperty("finish_reason");
  });

  it("spreads requests over the workers in turn, and takes the one that is named", async () => {
    const body = { model: "stator-builtin", messages, max_tokens: 1 };
    const seen: string[] = [];
    for (let i = 0; i < 4; i++) seen.push((await server.post(chat, body)).headers.get("x-stator-worker-id")!);
    expect(new Set(seen).size).toBe(2);
    expect(seen[0]).toBe(seen[2]);
    for (let i = 0; i < 3; i++) {
      const named = await server.post(chat, body, { headers: { "x-stator-worker-id": "worker-2" } });
      expect(named.headers.get("x-stator-worker-id")).toBe("worker-2");
    }
  });

  it("reports cached tokens when a worker sees a prefix again", async () => {
    const long = [{ role: "user", content: "The quick brown fox jumps over the lazy dog. ".repeat(8) }];
    const ask = async () => {
      const answer = await server.post(
        chat,
        { model: "stator-builtin", messages: long, max_tokens: 2 },
        { headers: { "x-stator-worker-id": "worker-1" } },
      );
      return (
        (await answer.json()) as { usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } } }
      ).usage;
    };
    await ask();
    const { prompt_tokens, prompt_tokens_details } = await ask();
    expect(prompt_tokens_details.cached_tokens).toBeGreaterThan(prompt_tokens - 17);
  });

  it("shows workers on the admin port and figures in the metrics", async () => {
    const workers = await server.workers();
    expect(workers.map(({ id, state }) => [id, state])).toEqual([
      ["worker-1", "ready"],
      ["worker-2", "ready"],
    ]);
    expect(new Set(workers.map(({ pid }) => pid)).size).toBe(2);
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    for (const name of [
      "stator_frontend_requests_total",
      "stator_frontend_time_to_first_token_seconds",
      "stator_frontend_inter_token_latency_seconds",
      "cached_tokens",
      'worker="worker-1"',
    ]) {
      expect(metrics).toContain(name);
    }
  });

  it("keeps the admin routes off the client port", async () => {
    expect((await fetch(`${server.url}/workers`)).status).toBe(404);
  });
});

describe("the life of stator serve", () => {
  it("drains on SIGTERM: running streams finish, new requests are refused, workers end", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--token-rate", "40", "--workers", "2"]);
    const pids = (await server.workers()).map(({ pid }) => pid);
    const running = await server.post(chat, { model: "stator-echo", messages, max_tokens: 60, stream: true });
    server.signal("SIGTERM");
    await until(
      async () => (await fetch(`${server.url}/health`).catch(() => undefined))?.status !== 200,
      5_000,
      () => server.describe(),
    );
    const refused = await server.post(chat, { model: "stator-echo", messages, max_tokens: 1 }).catch(() => undefined);
    if (refused) expect(refused.status).toBe(503);
    const stream = await readStream(running);
    expect(stream).toMatchObject({ done: true, error: undefined, finishReasons: ["length"] });
    expect(stream.text).toHaveLength(60);
    expect((await server.exited()).code).toBe(0);
    await until(
      () => pids.every((pid) => !isRunning(pid)),
      5_000,
      () => `workers ${pids} still run`,
    );
  });

  it("stops at once on a second Ctrl-C: streams hear why, workers end", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--token-rate", "1", "--workers", "1"]);
    const pids = (await server.workers()).map(({ pid }) => pid);
    const running = await server.post(chat, { model: "stator-echo", messages, max_tokens: 1000, stream: true });
    server.signal("SIGINT");
    await until(
      () => /again/i.test(server.stderr + server.stdout),
      5_000,
      () => server.describe(),
    );
    await new Promise((resolve) => setTimeout(resolve, 400)); // beyond the guard against one Ctrl-C that arrives twice
    server.signal("SIGINT");
    const stream = await readStream(running);
    expect(stream).toMatchObject({ done: true, finishReasons: [], error: { code: "draining" } });
    expect((await server.exited(5_000)).code).toBe(130);
    await until(
      () => pids.every((pid) => !isRunning(pid)),
      5_000,
      () => `workers ${pids} still run`,
    );
  });

  it("ends what is left at the drain deadline with a typed error", async () => {
    const server = await StatorServer.serve([
      ...["--engine", "echo", "--token-rate", "1", "--workers", "1"],
      ...["--set", "shutdown.drainTimeoutMs=500"],
    ]);
    const running = await server.post(chat, { model: "stator-echo", messages, max_tokens: 1000, stream: true });
    server.signal("SIGTERM");
    expect(await readStream(running)).toMatchObject({ done: true, finishReasons: [], error: { code: "draining" } });
    expect((await server.exited(10_000)).code).toBe(0);
  });

  it("leaves no worker behind when it is killed itself", async () => {
    const server = await StatorServer.serve(["--workers", "2"]);
    const pids = (await server.workers()).map(({ pid }) => pid);
    server.signal("SIGKILL");
    await server.exited();
    await until(
      () => pids.every((pid) => !isRunning(pid)),
      10_000,
      () => `workers ${pids} still run`,
    );
  });

  it("runs engines in its own process with --discovery memory", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--discovery", "memory", "--workers", "2"]);
    const answer = await server.post(chat, { model: "stator-echo", messages, max_tokens: 5 });
    expect(answer.status).toBe(200);
    expect(new Set((await server.workers()).map(({ pid }) => pid))).toEqual(new Set([server.pid]));
    await server.stop();
  });

  it("refuses requests that name no worker in direct mode", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--router-mode", "direct", "--workers", "2"]);
    const body = { model: "stator-echo", messages, max_tokens: 1 };
    expect((await server.post(chat, body)).status).toBe(400);
    expect((await server.post(chat, body, { headers: { "x-stator-worker-id": "worker-1" } })).status).toBe(200);
    await server.stop();
  });

  it.each([
    ["a missing model file", ["serve", "--model", "/nowhere/model.gguf", "--port", "0"], /\/nowhere\/model\.gguf/],
    ["a file that is no GGUF", ["serve", "--model", "package.json", "--port", "0"], /package\.json.*GGUF/s],
    ["an unknown flag", ["serve", "--wrokers", "2"], /--workers/],
    ["an unknown engine", ["serve", "--engine", "vllm"], /engine\.kind/],
    ["an unknown command", ["sevre"], /serve/],
    ["a bad port", ["serve", "--port", "99999"], /http\.port/],
    ["no workers", ["serve", "--workers", "0"], /stator frontend/],
    [
      "a context that the model does not have",
      ["serve", "--port", "0", "--context-length", "1000000"],
      /trained for 4096/,
    ],
  ])("says what is wrong with %s and ends", async (_name, args, message) => {
    const stator = new StatorProcess(args);
    const { code } = await stator.exited();
    expect(code).not.toBe(0);
    expect(stator.stderr).toMatch(message);
    expect(stator.stderr).not.toMatch(/\n\s+at /);
  });

  it("keeps the admin port on loopback", async () => {
    const stator = new StatorProcess(["serve", "--set", "admin.host=0.0.0.0"]);
    expect((await stator.exited()).code).toBe(78);
    expect(stator.stderr).toMatch(/admin\.host.*loopback/s);
  });

  it("starts without tracing packages when only a machine-wide variable asks for tracing", async () => {
    // The packages are installed here; a dead collector must not matter either.
    const server = await StatorServer.serve(["--engine", "echo", "--workers", "1"], {
      env: { OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:9" },
    });
    expect((await server.post(chat, { model: "stator-echo", messages, max_tokens: 1 })).status).toBe(200);
    await server.stop();
  });

  it("says who has the port", async () => {
    const first = await StatorServer.serve(["--engine", "echo", "--workers", "1"]);
    const second = new StatorProcess(["serve", "--engine", "echo", "--port", new URL(first.url).port]);
    expect((await second.exited()).code).not.toBe(0);
    expect(second.stderr).toMatch(/http\.port.*port \d+ .*in use/i);
    await first.stop();
  });
});

describe("stator frontend and stator worker, apart", () => {
  it("meet in a folder; a frontend that comes later sees the worker, and a worker that goes is gone", async () => {
    const folder = temporaryFolder();
    const worker = new StatorProcess([
      "worker",
      "--engine",
      "echo",
      "--worker-id",
      "lonely",
      "--discovery",
      `file:${folder}`,
    ]);
    const frontend = await StatorServer.frontend(["--discovery", `file:${folder}`]);
    expect((await frontend.workers()).map(({ id }) => id)).toEqual(["lonely"]);
    expect((await frontend.post(chat, { model: "stator-echo", messages, max_tokens: 3 })).status).toBe(200);
    worker.signal("SIGKILL");
    await until(
      async () => (await frontend.workers()).length === 0,
      15_000,
      () => frontend.describe(),
    );
    const gone = await frontend.post(chat, { model: "stator-echo", messages, max_tokens: 3 });
    expect([404, 503]).toContain(gone.status);
    await frontend.stop();
  });
});

describe("the other commands", () => {
  it("config print shows values and sources", async () => {
    const stator = new StatorProcess(["config", "print", "--json", "--port", "9"], {
      env: { STATOR_WORKERS: "7", HF_TOKEN: "hf_secret" },
    });
    expect((await stator.exited()).code).toBe(0);
    const rows = JSON.parse(stator.stdout) as { key: string; value: unknown; source: string }[];
    expect(rows).toContainEqual({ key: "http.port", value: 9, source: "--port" });
    expect(rows).toContainEqual({ key: "workers", value: 7, source: "STATOR_WORKERS" });
    expect(stator.stdout).not.toContain("hf_secret");
  });

  it("doctor says who is registered, reachable, stale and unreachable", async () => {
    const folder = temporaryFolder();
    const discovery = ["--discovery", `file:${folder}`];
    const empty = new StatorProcess(["doctor", "--discovery", `file:${folder}/none`]);
    expect(await empty.exited()).toEqual({ code: 0, signal: null });
    expect(empty.stdout).toContain("0 instances");
    expect(empty.stdout).toContain('nobody is registered in namespace "default"');
    const worker = await StatorWorker.start(["--engine", "echo", "--worker-id", "w1", ...discovery]);
    const good = new StatorProcess(["doctor", ...discovery]);
    expect(await good.exited()).toEqual({ code: 0, signal: null });
    expect(good.stdout).toMatch(/ok +default\/worker\/w1 +stator-echo +tcp:\S+ +reachable/);
    const file = join(folder, "default+worker+w1.json");
    const content = JSON.parse(readFileSync(file, "utf8")) as { record: Record<string, unknown> };
    const put = (workerId: string, change: object): void => {
      const record = { ...content.record, workerId, ...change };
      writeFileSync(join(folder, `default+worker+${workerId}.json`), JSON.stringify({ ...content, record }));
    };
    put("w2", { epoch: "older" });
    put("w3", { address: "tcp://127.0.0.1:1" });
    const advised = new StatorProcess(["doctor", ...discovery]);
    expect(await advised.exited()).toEqual({ code: 1, signal: null });
    expect(advised.stdout).toMatch(/FAIL .*w3.*\n +do: give doctor the frontend's own secret/);
    const bad = new StatorProcess(["doctor", "--json", ...discovery]);
    expect(await bad.exited()).toEqual({ code: 1, signal: null });
    const { ok, instances } = JSON.parse(bad.stdout) as {
      ok: boolean;
      instances: { instance: string; state: string }[];
    };
    expect(ok).toBe(false);
    expect(instances.map(({ instance, state }) => `${instance} ${state}`)).toEqual([
      "default/worker/w1 reachable",
      "default/worker/w2 stale",
      "default/worker/w3 unreachable",
    ]);
    await worker.stop();
  }, 60_000);

  it("doctor finds everything in order, and says what to do when it is not", async () => {
    const good = new StatorProcess(["doctor", "--port", "0"]);
    expect((await good.exited()).code, good.describe()).toBe(0);
    const bad = new StatorProcess(["doctor", "--model", "/nowhere.gguf", "--json"]);
    expect((await bad.exited()).code).toBe(1);
    const report = JSON.parse(bad.stdout) as { checks: { name: string; ok: boolean; advice?: string }[] };
    expect(report.checks.find(({ name }) => name === "model")).toMatchObject({ ok: false, advice: expect.any(String) });
  });

  it("chat streams an answer and leaves on /exit", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--workers", "1"]);
    const talk = new StatorProcess(["chat", "--url", server.url, "--max-tokens", "24"]);
    talk.child.stdin!.write("Hello\n/exit\n");
    expect((await talk.exited()).code, talk.describe()).toBe(0);
    expect(talk.stdout.trim().length).toBeGreaterThan(0);
    await server.stop();
  });

  it("chat goes on after a refused turn, and after a server that went away", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--workers", "1", "--context-length", "200"]);
    const talk = new StatorProcess(["chat", "--url", server.url, "--max-tokens", "16"]);
    talk.child.stdin!.write(`${"x".repeat(500)}\n`);
    await until(
      () => talk.stdout.includes("[400]"),
      10_000,
      () => talk.describe(),
    );
    talk.child.stdin!.write("short\n");
    await until(
      () => talk.stdout.includes("user: short"),
      10_000,
      () => talk.describe(),
    );
    await server.stop();
    talk.child.stdin!.write("anybody?\n/exit\n");
    expect((await talk.exited()).code, talk.describe()).toBe(1);
    expect(talk.stdout).toContain("[error]");
    expect(talk.stderr).not.toMatch(/\n\s+at /);
  });

  it("chat says what to do when no server answers", async () => {
    const talk = new StatorProcess(["chat", "--url", "http://127.0.0.1:9"]);
    expect((await talk.exited()).code).not.toBe(0);
    expect(talk.stderr).toMatch(/stator serve/);
  });
});

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterEach, expect, test } from "vitest";
import { EchoEngine } from "../../src/engines/echo/echo-engine.ts";
import { WorkerHost } from "../../src/engines/host/worker-host.ts";
import { openRuntime } from "../../src/runtime/component/open-runtime.ts";
import { FileDiscovery } from "../../src/runtime/discovery/file.ts";
import { TcpRequestPlaneServer } from "../../src/runtime/request-plane/tcp/server.ts";
import { expectPerfect, Fleet } from "../harness/fleet.ts";
import { serverProgram, startEtcd } from "../harness/real-servers.ts";
import { StatorProcess, StatorServer, temporaryFolder, until } from "../harness/stator-process.ts";

/* The fault table, third part: what a process must stand by itself. */

const chat = "/v1/chat/completions";
const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

function keep<T extends { stop(): Promise<void> }>(it: T): T {
  started.push(it);
  return it;
}

test("1,000 times in and out of etcd leave no memory, timer or socket behind", async () => {
  const etcd = keep(await startEtcd());
  const runtime = openRuntime({ discovery: `etcd://127.0.0.1:${etcd.port}` });
  const caller = openRuntime({ discovery: `etcd://127.0.0.1:${etcd.port}` });
  const place = (it: typeof runtime) => it.namespace().component("c").endpoint<number, number>("e");
  const client = place(caller).client();
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const cycle = async (calls: boolean): Promise<void> => {
    const served = await place(runtime).serve(async function* (n) {
      yield n + 1;
    });
    if (calls) expect(await client.ask(1)).toBe(2);
    await served.close();
  };
  const measure = () => {
    collect();
    const resources = process.getActiveResourcesInfo();
    return {
      heapBytes: process.memoryUsage().heapUsed,
      timers: count(resources, "Timeout"),
      resources: resources.length,
    };
  };
  for (let i = 0; i < 100; i++) await cycle(i % 10 === 0);
  const before = measure();
  for (let i = 0; i < 1_000; i++) await cycle(i % 10 === 0);
  await until(
    () => measure().resources <= before.resources + 3,
    10_000,
    () => `resources: ${JSON.stringify(measure())}, before ${JSON.stringify(before)}`,
  );
  const after = measure();
  expect(after.timers).toBeLessThanOrEqual(before.timers + 3);
  expect(after.heapBytes - before.heapBytes).toBeLessThan(8e6);
  client.close();
  await Promise.all([runtime.shutdown(), caller.shutdown()]);
}, 120_000);

test("a frontend without file descriptors refuses, does not spin, and is back within 5 s", async () => {
  const server = await StatorServer.serve(["--engine", "echo", "--discovery", "memory"]);
  const open = readdirSync(`/proc/${server.pid}/fd`).length;
  execFileSync("prlimit", [`--pid=${server.pid}`, `--nofile=${open + 100}`]);
  const { hostname, port } = new URL(server.url);
  const sockets: Socket[] = [];
  for (let i = 0; i < 400; i++) {
    const socket = connect({ host: hostname, port: Number(port) });
    socket.on("error", () => {});
    sockets.push(socket);
  }
  await until(
    () => sockets.every((socket) => !socket.connecting),
    10_000,
    () => "sockets still connect",
  );
  const cpuBefore = cpuSeconds(server.pid);
  const began = performance.now();
  const ask = (): Promise<number> =>
    server
      .post(
        chat,
        { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 1 },
        {
          signal: AbortSignal.timeout(1_000),
        },
      )
      .then(({ status }) => status)
      .catch(() => 0); // refused, reset, or not taken
  while (performance.now() - began < 3_000) expect([0, 200, 503]).toContain(await ask());
  const share = (cpuSeconds(server.pid) - cpuBefore) / ((performance.now() - began) / 1000);
  expect(share).toBeLessThan(0.6);
  // No flood of log lines: beside one for each request there are few.
  const others = server.stderr.split("\n").filter((line) => !line.includes('"msg":"request"'));
  expect(others.length).toBeLessThan(100);
  for (const socket of sockets) socket.destroy();
  await until(
    async () => (await ask()) === 200,
    5_000,
    () => server.describe(),
  );
  await server.stop();
}, 60_000);

test("50 models are registered: a frontend that restarts sees and serves them all", async () => {
  const folder = temporaryFolder();
  const discovery = new FileDiscovery({ folder });
  const hosts = Array.from({ length: 50 }, (_, i) => {
    const engine = new EchoEngine({ name: `model-${i}` });
    return new WorkerHost({ workerId: `w${i}`, engine, server: new TcpRequestPlaneServer(), discovery });
  });
  await Promise.all(hosts.map((host) => host.start()));
  for (let start = 0; start < 3; start++) {
    const frontend = await StatorServer.frontend(["--discovery", `file:${folder}`]);
    await until(
      async () => {
        const { data } = (await (await fetch(`${frontend.url}/v1/models`)).json()) as { data: unknown[] };
        return data.length === 50;
      },
      10_000,
      () => frontend.describe(),
    );
    const statuses = await Promise.all(
      hosts.map(async (_, i) => {
        const body = { model: `model-${i}`, messages: [{ role: "user", content: "x" }], max_tokens: 2 };
        return (await frontend.post(chat, body)).status;
      }),
    );
    expect(new Set(statuses)).toEqual(new Set([200]));
    if (start === 1) frontend.signal("SIGKILL");
    await frontend.stop();
  }
  await Promise.all(hosts.map((host) => host.shutdown()));
  await discovery.close();
}, 90_000);

test("the wall clock jumps an hour ahead and two back: streams, deadlines and discovery do not notice", async () => {
  const clock = join(temporaryFolder(), "clock");
  const jump = (offset: string): void => writeFileSync(clock, offset);
  jump("+0s");
  const library = serverProgram("usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1");
  const env = {
    LD_PRELOAD: library,
    FAKETIME_TIMESTAMP_FILE: clock,
    FAKETIME_NO_CACHE: "1",
    FAKETIME_DONT_FAKE_MONOTONIC: "1",
    DONT_FAKE_MONOTONIC: "1",
  };
  const etcd = keep(await startEtcd());
  for (const discovery of [`file:${temporaryFolder()}`, `etcd://127.0.0.1:${etcd.port}`]) {
    const fleet = keep(await Fleet.start({ discovery, workers: 2, options: { env } }));
    const date = async (): Promise<number> =>
      Date.parse((await fetch(`${fleet.frontend.url}/live`)).headers.get("date") ?? "");
    const streams = fleet.streams(16, 400);
    await streams.progressed(5);
    jump("+1h");
    await until(
      async () => Math.abs((await date()) - Date.now() - 3_600_000) < 60_000,
      10_000,
      () => "the clock of the frontend did not jump",
    );
    expectPerfect(await fleet.streams(16, 20).outcomes, 20);
    jump("-1h");
    expectPerfect(await fleet.streams(16, 20, { "x-stator-timeout-ms": "20000" }).outcomes, 20);
    expectPerfect(await streams.outcomes, 400);
    await fleet.ready(2);
    jump("+0s");
  }
}, 120_000);

test("a payload over the limit is refused at once, with limit and size", async () => {
  const server = keep(await StatorServer.serve(["--engine", "echo", "--set", "http.maxBodyBytes=100000"]));
  const content = "x".repeat(200_000);
  const response = await server.post(chat, { model: "stator-echo", messages: [{ role: "user", content }] });
  expect(response.status).toBe(413);
  const { error } = (await response.json()) as { error: { code: string; message: string } };
  expect(error.code).toBe("payload_too_large");
  expect(error.message).toContain("100000");
  expect(error.message).toMatch(/2000\d\d/);
});

test("the first process of a container ends on SIGTERM too, at whatever moment", async () => {
  const hub = createServer(() => {}); // never answers
  await new Promise<void>((resolve) => hub.listen(0, "127.0.0.1", resolve));
  const { port } = hub.address() as AddressInfo;
  const within = ["unshare", "--pid", "--fork", "--kill-child"];
  for (const args of [
    ["worker", "--model", "hf:some/model/model.gguf"],
    ["serve", "--model", "hf:some/model/model.gguf"],
    ["worker", "--engine", "echo", "--discovery", `etcd://127.0.0.1:${port}`],
    ["worker", "--engine", "echo", "--discovery", `file:${temporaryFolder()}`],
  ]) {
    let connections = 0;
    const onConnection = (): void => void connections++;
    hub.on("connection", onConnection);
    const more = [`huggingface.endpoint=http://127.0.0.1:${port}`, `huggingface.cache=${temporaryFolder()}`];
    const stator = new StatorProcess([...args, ...more.flatMap((pair) => ["--set", pair])], { within });
    await until(
      () => connections > 0 || stator.stderr.includes("worker ready"),
      20_000,
      () => stator.describe(),
    );
    const first = readFileSync(`/proc/${stator.pid}/task/${stator.pid}/children`, "utf8").trim();
    process.kill(Number(first), "SIGTERM");
    await stator.exited(10_000);
    hub.off("connection", onConnection);
  }
  hub.closeAllConnections();
  await new Promise((resolve) => hub.close(resolve));
}, 60_000);

function count(names: readonly string[], name: string): number {
  return names.filter((it) => it === name).length;
}

/** User and system time of a process. */
function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { ca, client, server, stranger } from "../../src/runtime/security/test-certificates.contract.ts";
import { expectPerfect, Fleet } from "../harness/fleet.ts";
import { StatorProcess, StatorServer, StatorWorker, temporaryFolder } from "../harness/stator-process.ts";

/* The parts of a fleet as processes of their own, with what the configuration can make of the planes between them. */

const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

function keep<T extends { stop(): Promise<void> }>(it: T): T {
  started.push(it);
  return it;
}

const chat = "/v1/chat/completions";
const ask = (frontend: StatorServer) =>
  frontend.post(chat, { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 2 });

describe("a fleet", () => {
  it("speaks JSON between its processes when a worker asks for it", async () => {
    const workerArgs = ["--set", "requestPlane.codec=json"];
    const fleet = keep(await Fleet.start({ discovery: `file:${temporaryFolder()}`, workers: 1, workerArgs }));
    expectPerfect(await fleet.streams(8, 30).outcomes, 30);
    const metadata = await (await fetch(`${fleet.workers.get("w1")!.systemUrl}/metadata`)).text();
    expect(metadata).toContain("w1");
  });

  it("lives on IPv6 alone", async () => {
    const fleet = keep(
      await Fleet.start({
        discovery: `file:${temporaryFolder()}`,
        workers: 2,
        workerArgs: ["--set", "worker.host=::1"],
        frontendArgs: ["--host", "::1"],
      }),
    );
    expect(fleet.frontend.url).toMatch(/^http:\/\/\[::1\]:/);
    for (const { address } of fleet.workers.values()) expect(address).toMatch(/^tcp:\/\/\[::1\]:/);
    expectPerfect(await fleet.streams(8, 20).outcomes, 20);
  });

  it("in one namespace does not see those in another", async () => {
    const discovery = `file:${temporaryFolder()}`;
    const blue = keep(await Fleet.start({ discovery, workers: 1, args: ["--namespace", "blue"] }));
    const green = new StatorProcess(["doctor", "--discovery", discovery, "--namespace", "green"]);
    expect((await green.exited()).code).toBe(0);
    expect(green.stdout).toContain(" 0 instances");
    expectPerfect(await blue.streams(2, 5).outcomes, 5);
  });

  it("takes a prompt of a million tokens, while others stream", async () => {
    const fleet = keep(
      await Fleet.start({
        discovery: `file:${temporaryFolder()}`,
        workers: 1,
        workerArgs: ["--context-length", "2000000"],
      }),
    );
    const others = fleet.streams(8, 100);
    await others.progressed(3);
    const prompt = "0123456789".repeat(100_000);
    const response = await fleet.frontend.post("/v1/completions", { model: "stator-echo", prompt, max_tokens: 10 });
    expect(await response.json()).toMatchObject({
      choices: [{ text: "0123456789" }],
      usage: { prompt_tokens: 1_000_000 },
    });
    expectPerfect(await others.outcomes, 100);
  }, 60_000);
});

describe("a shared secret", () => {
  const env = { STATOR_REQUEST_PLANE_SECRET: "a secret of sixteen bytes" };

  it("lets in who has it, and tells who has none or another one why not", async () => {
    const discovery = `file:${temporaryFolder()}`;
    const fleet = keep(await Fleet.start({ discovery, workers: 1, options: { env } }));
    expectPerfect(await fleet.streams(4, 10).outcomes, 10);
    for (const other of [{}, { STATOR_REQUEST_PLANE_SECRET: "another secret of sixteen" }]) {
      const doctor = new StatorProcess(["doctor", "--json", "--discovery", discovery], { env: other });
      expect((await doctor.exited()).code).toBe(1);
      expect(doctor.stdout).toMatch(/"state": "unreachable"/);
      expect(doctor.stdout).toMatch(/secret/);
    }
    const doctor = new StatorProcess(["doctor", "--discovery", discovery], { env });
    expect((await doctor.exited()).code).toBe(0);
  });

  it("reaches the workers of `serve`, and nobody can read it from the process list", async () => {
    const server = keep(await StatorServer.serve(["--engine", "echo", "--workers", "1"], { env }));
    expect((await ask(server)).status).toBe(200);
    const pids = (await server.workers()).map(({ pid }) => pid);
    expect(pids.length).toBe(1);
    for (const it of [...pids, server.pid]) {
      expect(readFileSync(`/proc/${it}/cmdline`, "utf8")).not.toContain("sixteen");
    }
    expect(server.stderr).not.toContain("sixteen");
  });

  it("that is too short is refused by the name of its key", async () => {
    const worker = new StatorProcess(["worker", "--engine", "echo"], { env: { STATOR_REQUEST_PLANE_SECRET: "short" } });
    expect((await worker.exited()).code).toBe(78);
    expect(worker.stderr).toMatch(/requestPlane\.secret = \[hidden\].*16 bytes/);
  });
});

describe("TLS", () => {
  let folder: string;
  const file = (name: string): string => join(folder, name);
  beforeAll(() => {
    folder = temporaryFolder();
    writeFileSync(file("ca"), ca);
    for (const [name, { cert, key }] of Object.entries({ server, client, stranger })) {
      writeFileSync(file(`${name}-cert`), cert);
      writeFileSync(file(`${name}-key`), key);
    }
  });
  const tls = (values: Record<string, string>): string[] =>
    Object.entries(values).flatMap(([key, value]) => ["--set", `tls.${key}=${value}`]);

  it("mutual: both sides show certificates; a frontend without one is told so", async () => {
    const discovery = `file:${temporaryFolder()}`;
    const worker = keep(
      await StatorWorker.start([
        ...["--engine", "echo", "--worker-id", "w", "--discovery", discovery],
        ...tls({
          cert: file("server-cert"),
          key: file("server-key"),
          ca: file("ca"),
          requireClientCertificate: "true",
        }),
      ]),
    );
    expect(worker.address).toMatch(/^tcp:/);
    const mine = tls({ ca: file("ca"), cert: file("client-cert"), key: file("client-key") });
    const frontend = keep(await StatorServer.frontend(["--discovery", discovery, ...mine]));
    expect((await ask(frontend)).status).toBe(200);
    const others = tls({ ca: file("ca"), cert: file("stranger-cert"), key: file("stranger-key") });
    for (const wrong of [tls({ ca: file("ca") }), others]) {
      const doctor = new StatorProcess(["doctor", "--json", "--discovery", discovery, ...wrong]);
      expect((await doctor.exited()).code).toBe(1);
      expect(doctor.stdout).toMatch(/certificate/);
    }
  });

  it("settings that are incomplete, or name no file, are refused by the name of the key", async () => {
    for (const [args, message] of [
      [tls({ cert: file("server-cert") }), /tls\.key/],
      [tls({ ca: "/nowhere.pem" }), /tls\.ca = \/nowhere\.pem: cannot be read/],
      [tls({ requireClientCertificate: "true" }), /tls\.c/],
    ] as const) {
      const worker = new StatorProcess(["worker", "--engine", "echo", ...args]);
      expect((await worker.exited()).code).toBe(78);
      expect(worker.stderr).toMatch(message);
    }
  });
});

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { expectPerfect, Fleet } from "../harness/fleet.ts";
import { freePort } from "../harness/real-servers.ts";
import { temporaryFolder } from "../harness/stator-process.ts";
import { TcpProxy } from "../harness/tcp-proxy.ts";

/*
 * The fault table, first part: workers and the way to them. Four workers under 64 streams; no client sees any of it.
 */

const STREAMS = 64;
const TOKENS = 150;

describe("four workers under 64 streams", () => {
  let fleet: Fleet;
  let folder: string;
  beforeAll(async () => {
    folder = temporaryFolder();
    fleet = await Fleet.start({ discovery: `file:${folder}`, workerArgs: ["--set", "shutdown.drainTimeoutMs=1000"] });
  });
  afterAll(() => fleet?.stop());
  afterEach(async () => {
    for (const [id, worker] of fleet.workers) {
      worker.signal("SIGCONT");
      if (worker.child.exitCode !== null || worker.child.signalCode !== null) await fleet.add(id);
    }
    await fleet.ready(4);
  }, 60_000);

  test("SIGKILL of a worker", async () => {
    const streams = fleet.streams(STREAMS, TOKENS);
    await streams.progressed(5);
    fleet.workers.get("w1")!.signal("SIGKILL");
    expectPerfect(await streams.outcomes, TOKENS);
  });

  test("SIGSTOP of a worker: its connections stay open", async () => {
    const streams = fleet.streams(STREAMS, TOKENS);
    await streams.progressed(5);
    fleet.workers.get("w2")!.signal("SIGSTOP");
    expectPerfect(await streams.outcomes, TOKENS);
  }, 60_000);

  test("SIGTERM during streams that take far longer than the worker's grace time", async () => {
    const tokens = 1_000; // 20 s
    const streams = fleet.streams(STREAMS, tokens);
    await streams.progressed(5);
    fleet.workers.get("w3")!.signal("SIGTERM");
    expect(await fleet.workers.get("w3")!.exited(10_000)).toEqual({ code: 0, signal: null });
    expectPerfect(await streams.outcomes, tokens);
  }, 90_000);

  test("a worker restarts in place, on another port", async () => {
    const streams = fleet.streams(STREAMS, 400);
    await streams.progressed(5);
    const { address } = fleet.workers.get("w4")!;
    fleet.workers.get("w4")!.signal("SIGKILL");
    await fleet.workers.get("w4")!.exited();
    const again = await fleet.add("w4");
    expect(again.address).not.toBe(address);
    expectPerfect(await streams.outcomes, 400);
    await fleet.ready(4);
    const next = await fleet.streams(STREAMS, 10).outcomes;
    expectPerfect(next, 10);
    expect(new Set(next.map(({ workerId }) => workerId))).toEqual(new Set(["w1", "w2", "w3", "w4"]));
  }, 60_000);

  test("a worker in discovery whose port refuses connections", async () => {
    const file = (id: string): string => join(folder, `default+worker+${id}.json`);
    const content = JSON.parse(readFileSync(file("w1"), "utf8")) as { record: object };
    const record = { ...content.record, workerId: "w9", epoch: "e9", address: `tcp://127.0.0.1:${await freePort()}` };
    writeFileSync(file("w9"), JSON.stringify({ ...content, record }));
    const began = performance.now();
    for (let round = 0; round < 3; round++) expectPerfect(await fleet.streams(STREAMS, 20).outcomes, 20);
    expect(performance.now() - began).toBeLessThan(20_000);
    writeFileSync(file("w9"), "{}");
  }, 60_000);
});

test("a worker is killed between accept and first token: what waits in its queue goes elsewhere", async () => {
  const fleet = await Fleet.start({
    discovery: `file:${temporaryFolder()}`,
    tokenRate: 200,
    workerArgs: ["--set", "engine.maxRunning=1"],
  });
  const streams = fleet.streams(STREAMS, 40);
  const load = async (): Promise<string> => (await fetch(`${fleet.workers.get("w1")!.systemUrl}/engine/loads`)).text();
  const end = performance.now() + 10_000;
  while (!/"hostQueued":([5-9]|1\d)/.test(await load())) expect(performance.now()).toBeLessThan(end);
  fleet.workers.get("w1")!.signal("SIGKILL");
  expectPerfect(await streams.outcomes, 40);
  await fleet.stop();
}, 90_000);

describe("a worker behind a connection that breaks", () => {
  let fleet: Fleet;
  let proxy: TcpProxy;
  beforeAll(async () => {
    fleet = await Fleet.start({ discovery: `file:${temporaryFolder()}`, workers: 3 });
    const port = await freePort();
    await fleet.add("w4", ["--set", `worker.port=${port}`, "--set", "worker.advertiseHost=127.0.0.2"]);
    proxy = await TcpProxy.start("127.0.0.2", "127.0.0.1", port);
    await fleet.ready(4);
  });
  afterAll(async () => {
    await fleet?.stop();
    await proxy?.close();
  });

  test("RST in the middle of streams", async () => {
    const streams = fleet.streams(STREAMS, TOKENS);
    await streams.progressed(5);
    proxy.reset();
    expectPerfect(await streams.outcomes, TOKENS);
    await fleet.ready(4);
  }, 60_000);

  test.each([1, 7, 40])(
    "%i bytes of what comes next, then silence",
    async (bytes) => {
      const streams = fleet.streams(STREAMS, TOKENS);
      await streams.progressed(5);
      proxy.stallAfter(bytes);
      expectPerfect(await streams.outcomes, TOKENS);
      proxy.heal();
      await fleet.ready(4);
    },
    90_000,
  );
});

test("a frontend that drains still follows discovery: what it loses meanwhile goes on elsewhere", async () => {
  const fleet = await Fleet.start({ discovery: `file:${temporaryFolder()}`, workers: 1 });
  const streams = fleet.streams(16, 500); // 10 s
  await streams.progressed(5);
  fleet.frontend.signal("SIGTERM");
  // Nobody is left but a worker that comes while the frontend goes.
  fleet.workers.get("w1")!.signal("SIGKILL");
  await fleet.add("w2");
  expectPerfect(await streams.outcomes, 500);
  expect(await fleet.frontend.exited(15_000)).toEqual({ code: 0, signal: null });
  await fleet.stop();
}, 90_000);

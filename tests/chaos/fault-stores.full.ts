import { afterEach, expect, test } from "vitest";
import { expectPerfect, Fleet } from "../harness/fleet.ts";
import { freePort, type RealServer, startEtcd, startNats } from "../harness/real-servers.ts";
import { temporaryFolder, until } from "../harness/stator-process.ts";

/* The fault table, second part: the stores and brokers that a fleet hangs on. */

const STREAMS = 64;

const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

function keep<T extends { stop(): Promise<void> }>(it: T): T {
  started.push(it);
  return it;
}

async function etcdFleet(): Promise<{ fleet: Fleet; etcd: RealServer }> {
  const etcd = keep(await startEtcd());
  const fleet = keep(await Fleet.start({ discovery: `etcd://127.0.0.1:${etcd.port}` }));
  return { fleet, etcd };
}

test("etcd is down for 30 s and comes back: nothing fails, before, meanwhile and after", async () => {
  const { fleet, etcd } = await etcdFleet();
  const across = fleet.streams(STREAMS, 2_000); // 40 s
  await across.progressed(5);
  await etcd.kill();
  const upAtMs = performance.now() + 30_000;
  // New requests meanwhile.
  while (performance.now() < upAtMs) expectPerfect(await fleet.streams(16, 50).outcomes, 50);
  await etcd.restart();
  expectPerfect(await across.outcomes, 2_000);
  // Membership lives again: one more worker is seen, and one that goes is gone.
  await fleet.add("w5");
  await fleet.ready(5);
  await fleet.workers.get("w5")!.stop();
  await fleet.ready(4);
  expectPerfect(await fleet.streams(STREAMS, 20).outcomes, 20);
}, 180_000);

test("etcd loses its data: nothing fails, and a new frontend sees all workers again", async () => {
  const { fleet, etcd } = await etcdFleet();
  const streams = fleet.streams(STREAMS, 600);
  await streams.progressed(5);
  await etcd.restart({ wiped: true });
  expectPerfect(await streams.outcomes, 600);
  await fleet.ready(4);
  const other = keep(await Fleet.start({ discovery: `etcd://127.0.0.1:${etcd.port}`, workers: 0 }));
  await other.ready(4);
  expectPerfect(await other.streams(8, 10).outcomes, 10);
}, 120_000);

test("NATS restarts under streams: they go on when it is back", async () => {
  const nats = keep(await startNats());
  const fleet = keep(
    await Fleet.start({ discovery: `file:${temporaryFolder()}`, args: ["--request-plane", nats.url] }),
  );
  const streams = fleet.streams(STREAMS, 300);
  await streams.progressed(5);
  await nats.restart();
  expectPerfect(await streams.outcomes, 300);
  await fleet.ready(4);
  expectPerfect(await fleet.streams(STREAMS, 20).outcomes, 20);
}, 120_000);

test("a fleet over NATS: a worker is killed", async () => {
  const nats = keep(await startNats());
  const fleet = keep(
    await Fleet.start({ discovery: `file:${temporaryFolder()}`, args: ["--request-plane", nats.url] }),
  );
  const streams = fleet.streams(STREAMS, 150);
  await streams.progressed(5);
  fleet.workers.get("w1")!.signal("SIGKILL");
  expectPerfect(await streams.outcomes, 150);
}, 120_000);

test("without NATS a request ends with a typed error in bounded time, and the service recovers", async () => {
  const port = await freePort();
  const nats = keep(await startNats({ port }));
  const fleet = keep(
    await Fleet.start({ discovery: `file:${temporaryFolder()}`, workers: 2, args: ["--request-plane", nats.url] }),
  );
  await nats.kill();
  const failed = await fleet.streams(8, 10, { "x-stator-timeout-ms": "5000" }).outcomes;
  for (const { status, code, done, durationMs } of failed) {
    expect([502, 503, 504]).toContain(status);
    expect(code).toBeDefined();
    expect(done).toBe(true);
    expect(durationMs).toBeLessThan(10_000);
  }
  await nats.restart();
  await until(
    async () => (await fleet.streams(4, 5).outcomes).every(({ status, code }) => status === 200 && !code),
    30_000,
    () => fleet.frontend.describe(),
  );
}, 120_000);

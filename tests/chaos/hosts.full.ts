import { afterAll, beforeAll, expect, test as vitestTest } from "vitest";
import { expectPerfect, Fleet } from "../harness/fleet.ts";
import { Hosts } from "../harness/hosts.ts";
import { type RealServer, startEtcd } from "../harness/real-servers.ts";
import { StatorServer, StatorWorker, until } from "../harness/stator-process.ts";

/* Three hosts with addresses of their own: two workers, a frontend. Their links are cut and healed; nobody restarts. */

const obstacle = Hosts.obstacle();
if (obstacle !== undefined) console.error(`the tests of three hosts are skipped: ${obstacle}`);
const test = vitestTest.skipIf(obstacle !== undefined);

const secret = "a secret of three hosts";
let hosts: Hosts;
let etcd: RealServer;
let fleet: Fleet;

beforeAll(async () => {
  if (obstacle !== undefined) return;
  hosts = new Hosts(["f", "a", "b"]);
  etcd = await startEtcd({ host: hosts.own });
  const discovery = `etcd://${hosts.own}:${etcd.port}`;
  const env = { STATOR_REQUEST_PLANE_SECRET: secret };
  const worker = (name: string): Promise<StatorWorker> =>
    StatorWorker.start(
      [
        ...["--engine", "echo", "--token-rate", "50", "--worker-id", name, "--discovery", discovery],
        ...["--set", "worker.host=0.0.0.0"],
      ],
      { env, within: hosts.on(name) },
    );
  const [a, b] = await Promise.all([worker("a"), worker("b")]);
  const frontend = await StatorServer.frontend(["--host", hosts.address("f"), "--discovery", discovery], {
    env,
    within: hosts.on("f"),
  });
  fleet = Fleet.of(
    frontend,
    new Map([
      ["a", a],
      ["b", b],
    ]),
  );
  await fleet.ready(2);
}, 120_000);

afterAll(async () => {
  for (const name of ["a", "b", "f"]) hosts?.heal(name);
  await fleet?.stop();
  await etcd?.stop();
  hosts?.remove();
});

const owners = async (): Promise<Set<string | null>> => {
  const outcomes = await fleet.streams(16, 5).outcomes;
  expectPerfect(outcomes, 5);
  return new Set(outcomes.map(({ workerId }) => workerId));
};

/** Both serve again: the way back to a host that was away opens within a few seconds. */
const bothServe = (): Promise<void> =>
  until(
    async () => (await owners()).size === 2,
    20_000,
    () => fleet.frontend.describe(),
  );

test("the workers are reached under their own addresses", async () => {
  expect(fleet.workers.get("a")!.address).toMatch(`tcp://${hosts.address("a")}:`);
  expect(await owners()).toEqual(new Set(["a", "b"]));
});

test("a worker's link is cut for longer than its lease, and healed", async () => {
  const streams = fleet.streams(32, 2_000); // 40 s
  await streams.progressed(5);
  hosts.cut("b");
  await fleet.ready(1);
  expect(await owners()).toEqual(new Set(["a"]));
  hosts.heal("b");
  await fleet.ready(2);
  await bothServe();
  expectPerfect(await streams.outcomes, 2_000);
}, 150_000);

test("the frontend is cut off from everything, and healed: typed errors in time, then all is well", async () => {
  hosts.cut("f");
  hosts.heal("f"); // the test itself reaches it through the same link
  await fleet.ready(2);
  hosts.cut("a");
  hosts.cut("b");
  const failed = await fleet.streams(8, 10, { "x-stator-timeout-ms": "15000" }).outcomes;
  for (const { status, code, durationMs } of failed) {
    expect([502, 503, 504]).toContain(status);
    expect(code).toBeDefined();
    expect(durationMs).toBeLessThan(20_000);
  }
  hosts.heal("a");
  hosts.heal("b");
  await fleet.ready(2);
  await until(
    async () => (await fleet.streams(8, 5).outcomes).every(({ status, code }) => status === 200 && !code),
    30_000,
    () => fleet.frontend.describe(),
  );
  await bothServe();
}, 150_000);

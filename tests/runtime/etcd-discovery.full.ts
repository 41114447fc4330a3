import { randomUUID } from "node:crypto";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { discoveryContract, RecordingListener, sampleRecord } from "../../src/runtime/discovery/discovery.contract.ts";
import { EtcdDiscovery, type EtcdDiscoveryOptions } from "../../src/runtime/discovery/etcd/etcd.ts";
import { HttpProxy } from "../harness/http-proxy.ts";
import { freePort, type RealServer, startEtcd } from "../harness/real-servers.ts";
import { until } from "../harness/stator-process.ts";

let etcd: RealServer;
beforeAll(async () => {
  etcd = await startEtcd();
});
afterAll(() => etcd?.stop());

const opened: EtcdDiscovery[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((discovery) => discovery.close()));
});

function open(root: string, options: Partial<EtcdDiscoveryOptions> = {}): EtcdDiscovery {
  const client = { endpoints: [etcd.url], requestTimeoutMs: 2_000 };
  const discovery = new EtcdDiscovery({ client, root, ttlSeconds: 2, ...options });
  opened.push(discovery);
  return discovery;
}

function watched(discovery: EtcdDiscovery): RecordingListener {
  const listener = new RecordingListener();
  discovery.watch({}, listener);
  return listener;
}

async function call(path: string, body: object): Promise<Record<string, unknown>> {
  const response = await fetch(etcd.url + path, { method: "POST", body: JSON.stringify(body) });
  return (await response.json()) as Record<string, unknown>;
}

async function countKeys(): Promise<number> {
  const { count } = await call("/v3/kv/range", { key: "AA==", range_end: "AA==", count_only: true });
  return Number(count ?? 0);
}

discoveryContract("etcd discovery", async () => {
  const root = randomUUID();
  return () => new EtcdDiscovery({ client: { endpoints: [etcd.url] }, root, ttlSeconds: 2 });
});

describe("etcd discovery and a store that fails", () => {
  test("etcd away for longer than the lease: nobody is removed, and the workers are registered again", async () => {
    const root = randomUUID();
    const [worker, frontend] = [open(root), open(root)];
    await worker.register(sampleRecord("a"));
    const listener = watched(frontend);
    await listener.untilEvents(["upsert a e1", "synced"]);
    await etcd.kill();
    await listener.until(() => listener.events.includes("trouble"), 20_000);
    await new Promise((resolve) => setTimeout(resolve, 3_000)); // the lease's life time, and a half
    await etcd.restart();
    await listener.until(() => listener.events.includes("trouble over"), 20_000);
    await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"));
    const late = watched(open(root));
    await late.until(() => late.picture.size === 2, 20_000);
    expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
    expect(listener.picture.get("a")).toEqual(sampleRecord("a"));
  }, 90_000);

  test("etcd comes back without its data: nobody is removed, and the store fills again by itself", async () => {
    const root = randomUUID();
    const [worker, frontend] = [open(root), open(root)];
    await worker.register(sampleRecord("a"));
    const listener = watched(frontend);
    await listener.untilEvents(["upsert a e1", "synced"]);
    await etcd.restart({ wiped: true });
    const late = watched(open(root));
    await late.until(() => late.picture.has("a"), 20_000);
    const lease = await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"), 20_000);
    expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
    // After the grace time removals count again.
    await lease.release();
    await listener.until(() => !listener.picture.has("b"), 20_000);
    expect(listener.picture.has("a")).toBe(true);
  }, 90_000);

  test("etcd frozen for longer than the lease: nobody is removed", async () => {
    const root = randomUUID();
    const [worker, frontend] = [open(root), open(root)];
    await worker.register(sampleRecord("a"));
    const listener = watched(frontend);
    await listener.untilEvents(["upsert a e1", "synced"]);
    etcd.signal("SIGSTOP");
    await listener.until(() => listener.events.includes("trouble"), 20_000);
    etcd.signal("SIGCONT");
    await listener.until(() => listener.events.includes("trouble over"), 20_000);
    await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"), 20_000);
    const late = watched(open(root));
    await late.until(() => late.picture.size === 2, 20_000);
    expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
  }, 90_000);

  test("keys that somebody deletes come back", async () => {
    const root = randomUUID();
    await open(root).register(sampleRecord("a"));
    const listener = watched(open(root));
    await listener.until(() => listener.picture.has("a"));
    await call("/v3/kv/deleterange", { key: btoa(`${root}/`), range_end: btoa(`${root}0`) });
    await listener.until(() => listener.events.includes("removed a e1"));
    await listener.until(() => listener.picture.has("a"), 20_000);
  });

  test("a value that somebody has garbled is written again", async () => {
    const root = randomUUID();
    await open(root).register(sampleRecord("a"));
    await call("/v3/kv/put", { key: btoa(`${root}/v1/instances/default/worker/a`), value: btoa("{") });
    await until(
      async () => {
        const late = watched(open(root));
        await late.until(() => late.events.includes("synced"));
        return late.picture.has("a");
      },
      20_000,
      () => "it stays garbled",
    );
  });

  test("a process that has lost its place to another one takes it again when that one goes", async () => {
    const root = randomUUID();
    const lease = await open(root).register(sampleRecord("a", "e1"));
    const listener = watched(open(root));
    const other = await open(root).register(sampleRecord("a", "e2"));
    await listener.until(() => listener.picture.get("a")?.epoch === "e2");
    await lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"));
    expect(listener.picture.get("a")?.epoch).toBe("e2");
    await other.release();
    await listener.until(() => listener.picture.get("a")?.epoch === "e1", 20_000);
    expect(listener.picture.get("a")?.address).toBe("tcp://127.0.0.1:99");
  });

  test.each(["update", "register"] as const)("a record whose %s got no answer goes with its lease", async (what) => {
    const root = randomUUID();
    const proxy = await HttpProxy.start(etcd.url);
    const client = { endpoints: [proxy.url], requestTimeoutMs: 300 };
    const worker = open(root, { client, startTimeoutMs: 2_000, ttlSeconds: 60 });
    const listener = watched(open(root));
    const keeper = await worker.register(sampleRecord("keeper"));
    const lease = what === "update" ? await worker.register(sampleRecord("a")) : undefined;
    proxy.swallow = "/v3/kv/txn";
    if (lease === undefined) await expect(worker.register(sampleRecord("a"))).rejects.toThrow("no answer in time");
    else await lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"));
    await listener.until(() => listener.events.includes("upsert a e1"));
    proxy.swallow = undefined;
    await lease?.release();
    await listener.until(() => !listener.picture.has("a"));
    expect(listener.picture.has("keeper")).toBe(true);
    await keeper.release();
    await proxy.close();
  });

  test("the same key again in one process: the older lease is over, however late its release comes through", async () => {
    const root = randomUUID();
    const worker = open(root);
    const listener = watched(open(root));
    const older = await worker.register(sampleRecord("a"));
    const [, newer] = await Promise.all([
      older.release(),
      worker.register(sampleRecord("a", "e1", "tcp://127.0.0.1:99")),
      older.release(),
    ]);
    await older.update(sampleRecord("a", "e1", "tcp://127.0.0.1:98"));
    await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"));
    expect(listener.picture.get("a")?.address).toBe("tcp://127.0.0.1:99");
    await newer.release();
    await listener.until(() => !listener.picture.has("a"));
  });

  test("an endpoint that falls silent does not cost the lease while another one answers", async () => {
    const root = randomUUID();
    const silent = await HttpProxy.start(etcd.url);
    const client = { endpoints: [silent.url, etcd.url] }; // requests have 5 s, longer than the lease lives
    await open(root, { client, ttlSeconds: 4 }).register(sampleRecord("a"));
    const listener = watched(open(root));
    await listener.until(() => listener.picture.has("a"));
    silent.swallow = "/";
    await new Promise((resolve) => setTimeout(resolve, 9_000)); // two life times
    expect(listener.events).toEqual(["upsert a e1", "synced"]);
    await silent.close();
  }, 30_000);

  test("a process whose event loop stands still for longer than the lease keeps it", async () => {
    const root = randomUUID();
    const [worker, frontend] = [open(root), open(root)];
    await worker.register(sampleRecord("a"));
    const listener = watched(frontend);
    await listener.untilEvents(["upsert a e1", "synced"]);
    const end = performance.now() + 4_000;
    while (performance.now() < end); // nothing but threads can run
    await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"));
    expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
  });

  test("a process that ends without a word is gone after its lease", async () => {
    const root = randomUUID();
    const listener = watched(open(root));
    const leaseId = String((await call("/v3/lease/grant", { TTL: "2" })).ID);
    const value = JSON.stringify({ version: 1, record: sampleRecord("a") });
    const key = `${root}/v1/instances/default/worker/a`;
    await call("/v3/kv/put", { key: btoa(key), value: btoa(value), lease: leaseId });
    await listener.until(() => listener.picture.has("a"));
    await listener.until(() => !listener.picture.has("a"), 20_000);
  });

  test("garbage in the store is skipped, and a garbled value does not remove its worker", async () => {
    const root = randomUUID();
    await open(root).register(sampleRecord("a"));
    const listener = watched(open(root));
    await listener.until(() => listener.picture.has("a"));
    const put = (name: string, value: string) =>
      call("/v3/kv/put", { key: btoa(`${root}/v1/instances/default/worker/${name}`), value: btoa(value) });
    const record = sampleRecord("c");
    await put("a", "{");
    await put("b", JSON.stringify({ version: 1, record }));
    await put("c", JSON.stringify({ version: 2, record }));
    await put("c/d", JSON.stringify({ version: 1, record }));
    await put("c", JSON.stringify({ version: 1, record: { ...record, address: 3 } }));
    await put("c", JSON.stringify({ version: 1, record }));
    await listener.until(() => listener.picture.has("c"));
    expect([...listener.picture.keys()].sort()).toEqual(["a", "c"]);
  });

  test("another endpoint is used when one is dead, and a store that is not there is a clear error in time", async () => {
    const dead = `http://127.0.0.1:${await freePort()}`;
    const root = randomUUID();
    await open(root, { client: { endpoints: [dead, etcd.url] } }).register(sampleRecord("a"));
    const listener = watched(open(root, { client: { endpoints: [dead, etcd.url] } }));
    await listener.until(() => listener.picture.has("a"));
    await expect(
      open(root, { client: { endpoints: [dead] }, startTimeoutMs: 500 }).register(sampleRecord("b")),
    ).rejects.toMatchObject({ code: "discovery_unavailable", message: expect.stringContaining("ECONNREFUSED") });
  });

  test("revisions that are compacted away before they could be watched are no loss", async () => {
    const root = randomUUID();
    const worker = open(root);
    const lease = await worker.register(sampleRecord("a"));
    const proxy = await HttpProxy.start(etcd.url);
    proxy.swallow = "/v3/watch";
    const listener = watched(open(root, { client: { endpoints: [proxy.url], requestTimeoutMs: 1_000 } }));
    await listener.until(() => listener.picture.has("a"));
    await lease.release();
    await worker.register(sampleRecord("b"));
    const { header } = await call("/v3/kv/range", { key: "AA==" });
    await call("/v3/kv/compaction", { revision: (header as { revision: string }).revision, physical: true });
    proxy.swallow = undefined;
    await listener.until(() => listener.picture.has("b") && !listener.picture.has("a"), 20_000);
    await proxy.close();
  }, 40_000);

  test("close takes the records along at once", async () => {
    const root = randomUUID();
    const worker = open(root, { ttlSeconds: 60 });
    const listener = watched(open(root));
    const before = await countKeys();
    for (const id of ["a", "b", "c"]) await worker.register(sampleRecord(id));
    await listener.until(() => listener.picture.size === 3);
    await worker.close();
    await until(
      async () => (await countKeys()) === before && listener.picture.size === 0,
      5_000,
      () => "keys are left",
    );
  });

  test("1,200 instances are read in pages", async () => {
    const root = randomUUID();
    const worker = open(root);
    const ids = Array.from({ length: 1_200 }, (_, i) => `w${i}`);
    for (let at = 0; at < ids.length; at += 100) {
      await Promise.all(ids.slice(at, at + 100).map((id) => worker.register(sampleRecord(id))));
    }
    const listener = watched(open(root));
    await listener.until(() => listener.events.includes("synced"));
    expect(listener.picture.size).toBe(1_200);
  }, 60_000);
});

describe("etcd with users", () => {
  let secured: RealServer;
  beforeAll(async () => {
    secured = await startEtcd();
    const post = (path: string, body: object) =>
      fetch(secured.url + path, { method: "POST", body: JSON.stringify(body) });
    await post("/v3/auth/user/add", { name: "root", password: "s3cret" });
    await post("/v3/auth/role/add", { name: "root" });
    await post("/v3/auth/user/grant", { user: "root", role: "root" });
    await post("/v3/auth/enable", {});
  });
  afterAll(() => secured?.stop());

  test("an etcd that restarts has forgotten all logins: they are made again", async () => {
    const client = { endpoints: [secured.url], username: "root", password: "s3cret" };
    const root = randomUUID();
    const worker = open(root, { client });
    await worker.register(sampleRecord("a"));
    const listener = watched(open(root, { client }));
    await listener.until(() => listener.picture.has("a"));
    await secured.restart();
    const lease = await worker.register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"), 20_000);
    await lease.release();
    await listener.until(() => !listener.picture.has("b"), 20_000);
    expect(listener.picture.has("a")).toBe(true);
  }, 60_000);

  test("the right password works, also for watches; a wrong one and none are clear errors", async () => {
    const client = { endpoints: [secured.url], username: "root", password: "s3cret" };
    const root = randomUUID();
    await open(root, { client }).register(sampleRecord("a"));
    const listener = watched(open(root, { client }));
    await listener.until(() => listener.picture.has("a"));
    await open(root, { client }).register(sampleRecord("b"));
    await listener.until(() => listener.picture.has("b"));
    for (const wrong of [{ ...client, password: "guess" }, { endpoints: [secured.url] }]) {
      await expect(
        open(root, { client: wrong, startTimeoutMs: 1_000 }).register(sampleRecord("c")),
      ).rejects.toMatchObject({ code: "discovery_unavailable", message: expect.not.stringContaining("guess") });
    }
  });
});

import { afterEach, describe, expect, test } from "vitest";
import { type InstanceRecord, instanceKey, type WorkerRecord } from "../../protocol/instance.ts";
import type { Discovery, DiscoveryListener } from "./discovery.ts";

export function sampleRecord(workerId: string, epoch = "e1", address = "tcp://127.0.0.1:1234"): WorkerRecord {
  return {
    namespace: "default",
    component: "worker",
    workerId,
    epoch,
    endpoints: [{ name: "generate", codec: "msgpack" }],
    address,
    pid: process.pid,
    engine: { kind: "echo", version: "1" },
    capacity: { maxRunning: 4, totalBlocks: 16 },
    startedAtMs: 1_700_000_000_000,
    card: {
      name: "m",
      aliases: ["alias"],
      revision: "r",
      tokenizer: { kind: "bytes" },
      chatTemplate: "{{ messages }}",
      bosToken: "",
      eosToken: "",
      vocabularySize: 256,
      contextLength: 1024,
      blockSize: 16,
      roles: ["aggregated"],
      capabilities: { maxTopLogprobs: 5, grammars: [], parameters: ["seed"] },
      kvLayout: "none",
      defaults: {},
    },
  };
}

/** What a watch told, as short lines, and the picture that results from it. */
export class RecordingListener implements DiscoveryListener {
  readonly events: string[] = [];
  readonly picture = new Map<string, InstanceRecord>();

  onUpsert(record: InstanceRecord): void {
    this.events.push(`upsert ${record.workerId} ${record.epoch}`);
    this.picture.set(record.workerId, record);
  }

  onRemoved({ workerId, epoch }: InstanceRecord): void {
    this.events.push(`removed ${workerId} ${epoch}`);
    this.picture.delete(workerId);
  }

  onSynced(): void {
    this.events.push("synced");
  }

  onTrouble(reason: string | undefined): void {
    this.events.push(reason === undefined ? "trouble over" : "trouble");
  }

  async until(condition: () => boolean, timeoutMs = 10_000): Promise<void> {
    const end = performance.now() + timeoutMs;
    while (!condition()) {
      if (performance.now() > end) throw new Error(`waited in vain; heard ${JSON.stringify(this.events)}`);
      await new Promise((resolve) => setTimeout(resolve, 3));
    }
  }

  untilEvents(events: string[]): Promise<void> {
    return this.until(() => JSON.stringify(this.events) === JSON.stringify(events));
  }
}

/** The rules of discovery.ts. `makeStore` gives a way to make discoveries that share one store. */
export function discoveryContract(name: string, makeStore: () => Promise<() => Discovery>): void {
  const opened: Discovery[] = [];
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((discovery) => discovery.close()));
  });

  async function store(): Promise<() => Discovery> {
    const make = await makeStore();
    return () => {
      const discovery = make();
      opened.push(discovery);
      return discovery;
    };
  }

  describe(name, () => {
    test("a watch gives the snapshot, synced once, then changes; never inside watch()", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      await owner.register(sampleRecord("a"));
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      expect(listener.events).toEqual([]);
      await listener.untilEvents(["upsert a e1", "synced"]);
      expect(listener.picture.get("a")).toEqual(sampleRecord("a"));
      const lease = await owner.register(sampleRecord("b"));
      await listener.untilEvents(["upsert a e1", "synced", "upsert b e1"]);
      await lease.release();
      await listener.untilEvents(["upsert a e1", "synced", "upsert b e1", "removed b e1"]);
      const late = new RecordingListener();
      viewer.watch({}, late);
      expect(late.events).toEqual([]);
      await late.untilEvents(["upsert a e1", "synced"]);
    });

    test("an empty store is synced too", async () => {
      const listener = new RecordingListener();
      (await store())().watch({}, listener);
      await listener.untilEvents(["synced"]);
    });

    test("update replaces the record and is told once; the same record again is not", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      const lease = await owner.register(sampleRecord("a"));
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      await listener.untilEvents(["upsert a e1", "synced"]);
      await lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"));
      await listener.until(() => listener.picture.get("a")?.address === "tcp://127.0.0.1:99");
      await lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"));
      await owner.register(sampleRecord("b"));
      await listener.until(() => listener.picture.has("b"));
      expect(listener.events).toEqual(["upsert a e1", "synced", "upsert a e1", "upsert b e1"]);
    });

    test("a worker that comes back under the same id has a new epoch; its old lease touches nothing any more", async () => {
      const make = await store();
      const [first, second, viewer] = [make(), make(), make()];
      const oldLease = await first.register(sampleRecord("a", "e1"));
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      await listener.untilEvents(["upsert a e1", "synced"]);
      await second.register(sampleRecord("a", "e2"));
      await listener.until(() => listener.picture.get("a")?.epoch === "e2");
      await oldLease.release();
      await oldLease.release();
      await second.register(sampleRecord("b"));
      await listener.until(() => listener.picture.has("b"));
      expect(listener.picture.get("a")?.epoch).toBe("e2");
    });

    test("close releases the leases and silences the watches; twice is fine", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      const own = new RecordingListener();
      owner.watch({}, own);
      await Promise.all(["a", "b"].map((id) => owner.register(sampleRecord(id))));
      await listener.until(() => listener.picture.size === 2);
      await own.until(() => own.picture.size === 2);
      await owner.close();
      await owner.close();
      await listener.until(() => listener.picture.size === 0);
      expect(own.picture.size).toBe(2);
    });

    test("a closed watch hears nothing", async () => {
      const make = await store();
      const discovery = make();
      const [closed, open] = [new RecordingListener(), new RecordingListener()];
      const watch = discovery.watch({}, closed);
      watch.close();
      watch.close();
      discovery.watch({}, open);
      await discovery.register(sampleRecord("a"));
      await open.until(() => open.picture.has("a"));
      expect(closed.events).toEqual([]);
    });

    test("odd worker ids", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      const ids = [
        "a..",
        "a.json",
        "a:b",
        "a.3ab",
        "a_3ab",
        "A",
        "tcp:127.0.0.1:80",
        `${"long".repeat(31)}.1`,
        `${"long".repeat(31)}.2`,
      ];
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      const leases = await Promise.all(ids.map((id) => owner.register(sampleRecord(id))));
      await listener.until(() => listener.picture.size === ids.length);
      expect([...listener.picture.keys()].sort()).toEqual([...ids].sort());
      await Promise.all(leases.map((lease) => lease.release()));
      await listener.until(() => listener.picture.size === 0);
    });

    test("a watch sees its scope only, and the same worker id in another component is another instance", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      const scopes = [{}, { namespace: "n1" }, { namespace: "n1", component: "c1" }, { namespace: "n" }];
      const seen = scopes.map((scope) => {
        const keys = new Set<string>();
        viewer.watch(scope, {
          onUpsert: (record) => keys.add(instanceKey(record)),
          onRemoved: (record) => keys.delete(instanceKey(record)),
          onSynced: () => keys.add("synced"),
        });
        return keys;
      });
      const place = (namespace: string, component: string) => ({ ...sampleRecord("a"), namespace, component });
      const leases = await Promise.all(
        [place("n1", "c1"), place("n1", "c10"), place("n10", "c1")].map((record) => owner.register(record)),
      );
      const expected = [
        ["n1/c1/a", "n1/c10/a", "n10/c1/a", "synced"],
        ["n1/c1/a", "n1/c10/a", "synced"],
        ["n1/c1/a", "synced"],
        ["synced"],
      ];
      const view = (): string => JSON.stringify(seen.map((keys) => [...keys].sort()));
      await new RecordingListener().until(() => view() === JSON.stringify(expected));
      await leases[0]!.release();
      const left = [["n1/c10/a", "n10/c1/a", "synced"], ["n1/c10/a", "synced"], ["synced"], ["synced"]];
      await new RecordingListener().until(() => view() === JSON.stringify(left));
    });

    test("an instance without a model", async () => {
      const make = await store();
      const { card: _card, engine: _engine, capacity: _capacity, ...plain } = sampleRecord("a");
      const record: InstanceRecord = { ...plain, events: [{ topic: "kv", address: "tcp://127.0.0.1:2" }] };
      await make().register(record);
      const listener = new RecordingListener();
      make().watch({}, listener);
      await listener.until(() => listener.picture.has("a"));
      expect(listener.picture.get("a")).toEqual(record);
    });

    test("100 times in and out leave nothing behind", async () => {
      const make = await store();
      const [owner, viewer] = [make(), make()];
      const listener = new RecordingListener();
      viewer.watch({}, listener);
      for (let i = 0; i < 100; i++) {
        const lease = await owner.register(sampleRecord(`w${i % 3}`, `e${i}`));
        await lease.release();
      }
      await owner.register(sampleRecord("last"));
      await listener.until(() => listener.picture.has("last") && listener.picture.size === 1);
    });
  });
}

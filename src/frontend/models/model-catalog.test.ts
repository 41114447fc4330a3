import { pino } from "pino";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { WorkerRecord } from "../../protocol/instance.ts";
import type { ModelCard } from "../../protocol/model-card.ts";
import { MemoryDiscovery, MemoryStore } from "../../runtime/discovery/memory.ts";
import { MemoryNetwork, MemoryRequestPlaneClient } from "../../runtime/request-plane/memory.ts";
import { ModelCatalog } from "./model-catalog.ts";

const card: ModelCard = {
  name: "m",
  aliases: ["alias"],
  revision: "1",
  tokenizer: { kind: "bytes" },
  bosToken: "",
  eosToken: "",
  vocabularySize: 256,
  contextLength: 100,
  blockSize: 16,
  roles: ["aggregated"],
  capabilities: { maxTopLogprobs: 0, grammars: [], parameters: [] },
  kvLayout: "none",
  defaults: {},
};

const record = (workerId: string, overrides: Partial<WorkerRecord> = {}): WorkerRecord => ({
  namespace: "default",
  component: "worker",
  workerId,
  endpoints: [],
  epoch: `${workerId}-1`,
  address: `memory://${workerId}`,
  pid: 1,
  engine: { kind: "echo", version: "1" },
  card,
  capacity: { maxRunning: 1, totalBlocks: 1 },
  startedAtMs: 1_000,
  ...overrides,
});

describe("ModelCatalog", () => {
  const closers: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0)) await close();
  });

  function setUp() {
    const store = new MemoryStore();
    const discovery = new MemoryDiscovery(store);
    const plane = new MemoryRequestPlaneClient({ network: new MemoryNetwork() });
    const catalog = new ModelCatalog({ discovery, plane, logger: pino({ level: "silent" }) });
    closers.push(
      () => catalog.close(),
      () => plane.close(),
      () => discovery.close(),
    );
    return { discovery, catalog };
  }
  const eventually = (check: () => void) => vi.waitFor(check, { timeout: 5_000, interval: 5 });

  it("keeps a worker whose process takes another component away", async () => {
    const { discovery, catalog } = setUp();
    await discovery.register(record("a"));
    const { card: _card, engine: _engine, capacity: _capacity, ...plain } = record("a", { component: "greeter" });
    const other = await discovery.register(plain);
    await eventually(() => expect(catalog.lookup("m")).toBeDefined());
    await other.release();
    await discovery.register(record("b"));
    await eventually(() => expect(catalog.lookup("m")!.workerIds()).toContain("b"));
    expect(catalog.lookup("m")!.workerIds()).toEqual(["a", "b"]);
  });

  it("makes one model of identical cards, reachable by name and alias, and forgets it with its last worker", async () => {
    const { discovery, catalog } = setUp();
    const leases = [await discovery.register(record("a")), await discovery.register(record("b"))];
    await eventually(() => expect(catalog.list().map(({ card: { name } }) => name)).toEqual(["m"]));
    expect(catalog.synced).toBe(true);
    expect(catalog.lookup("m")!.workerIds()).toEqual(["a", "b"]);
    expect(catalog.lookup("alias")).toBe(catalog.lookup("m"));
    await leases[0]!.release();
    await eventually(() => expect(catalog.lookup("m")!.workerIds()).toEqual(["b"]));
    await leases[1]!.release();
    await eventually(() => expect(catalog.lookup("m")).toBeUndefined());
    expect(catalog.lookup("alias")).toBeUndefined();
  });

  it("leaves out a different card under the same name, visibly, until the others are gone", async () => {
    const { discovery, catalog } = setUp();
    const first = await discovery.register(record("a"));
    await discovery.register(record("b", { card: { ...card, revision: "2" } }));
    await eventually(() => expect(catalog.problems()).toHaveLength(1));
    expect(catalog.problems()[0]).toContain("worker b");
    expect(catalog.workers().map(({ record: { workerId }, state }) => [workerId, state])).toEqual([
      ["a", "ready"],
      ["b", "conflict"],
    ]);
    expect(catalog.lookup("m")!.workerIds()).toEqual(["a"]);
    await first.release();
    await eventually(() => expect(catalog.lookup("m")!.workerIds()).toEqual(["b"]));
    expect(catalog.lookup("m")!.card.revision).toBe("2");
    expect(catalog.problems()).toEqual([]);
  });

  it("takes a new address under a known id as an update, and ignores late news of an older epoch", async () => {
    const { discovery, catalog } = setUp();
    const lease = await discovery.register(record("a"));
    await eventually(() => expect(catalog.lookup("m")?.worker("a")?.epoch).toBe("a-1"));
    await lease.update(record("a", { epoch: "a-2", address: "memory://elsewhere" }));
    await eventually(() => expect(catalog.lookup("m")!.worker("a")!.address).toBe("memory://elsewhere"));
    expect(catalog.lookup("m")!.workerIds()).toEqual(["a"]);
  });

  it("moves a worker whose model changed", async () => {
    const { discovery, catalog } = setUp();
    const lease = await discovery.register(record("a"));
    await eventually(() => expect(catalog.lookup("m")).toBeDefined());
    await lease.update(record("a", { epoch: "a-2", card: { ...card, name: "other", aliases: [] } }));
    await eventually(() => expect(catalog.lookup("other")?.workerIds()).toEqual(["a"]));
    expect(catalog.lookup("m")).toBeUndefined();
  });
});

import { pino } from "pino";
import { afterEach, describe, expect, it, vi } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, type WorkerRecord, workerEndpoints } from "../../protocol/instance.ts";
import {
  MemoryNetwork,
  MemoryRequestPlaneClient,
  MemoryRequestPlaneServer,
} from "../../runtime/request-plane/memory.ts";
import { testCard } from "../test-frontend.contract.ts";
import { Inhibitions } from "./inhibitions.ts";

const record = (workerId: string, overrides: Partial<WorkerRecord> = {}): WorkerRecord => ({
  namespace: "default",
  component: "worker",
  workerId,
  endpoints: [],
  epoch: "e1",
  address: `memory://${workerId}`,
  pid: 1,
  engine: { kind: "echo", version: "1" },
  card: testCard,
  capacity: { maxRunning: 1, totalBlocks: 1 },
  startedAtMs: 1_000,
  ...overrides,
});

describe("Inhibitions", () => {
  const closers: (() => Promise<void> | void)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0)) await close();
  });

  function setUp() {
    const network = new MemoryNetwork();
    const plane = new MemoryRequestPlaneClient({ network });
    const times = { firstProbeMs: 5, maxProbeMs: 20, probeTimeoutMs: 50 };
    const inhibitions = new Inhibitions(plane, pino({ level: "silent" }), times);
    closers.push(
      () => inhibitions.close(),
      () => plane.close(),
    );
    const worker = async (name: string): Promise<MemoryRequestPlaneServer> => {
      const server = new MemoryRequestPlaneServer(name, { network });
      closers.push(() => server.close());
      await server.listen();
      return server;
    };
    return { inhibitions, worker };
  }
  const eventually = (check: () => void) => vi.waitFor(check, { timeout: 5_000, interval: 5 });

  it("keeps new requests away from a failing worker, but not when nobody else is left", () => {
    const { inhibitions } = setUp();
    const ids = ["a", "b", "c"];
    expect(inhibitions.preferred(ids)).toBe(ids);
    inhibitions.inhibit(record("a"), "silent");
    inhibitions.inhibit(record("a"), "lost");
    expect(inhibitions.reasonOf("a")).toBe("silent");
    expect(inhibitions.preferred(ids)).toEqual(["b", "c"]);
    expect(inhibitions.preferred(ids, new Set(["b"]))).toEqual(["b", "c"]);
    expect(inhibitions.preferred(ids, new Set(["b", "c"]))).toEqual(ids);
    expect(inhibitions.problems()).toEqual(["worker a is avoided: silent; the log says why"]);
    inhibitions.inhibit(record("b"), "lost");
    inhibitions.inhibit(record("c"), "unreachable");
    expect(inhibitions.preferred(ids)).toEqual(ids);
  });

  it("ends when a probe is answered, and not before", async () => {
    const { inhibitions, worker } = setUp();
    inhibitions.inhibit(record("a"), "unreachable");
    const silent = await worker("b");
    let probes = 0;
    silent.handle(calledEndpoint(record("b"), workerEndpoints.status), (call) => {
      probes++;
      return new Promise((_, reject) => call.signal.addEventListener("abort", () => reject(call.signal.reason)));
    });
    inhibitions.inhibit(record("b", { address: silent.address }), "silent");
    await eventually(() => expect(probes).toBeGreaterThanOrEqual(3));
    expect(inhibitions.size).toBe(2);
    (await worker("a")).handle(calledEndpoint(record("a"), workerEndpoints.status), async (call) => {
      call.accept(0);
    });
    await eventually(() => expect(inhibitions.reasonOf("a")).toBeUndefined());
    expect(inhibitions.reasonOf("b")).toBe("silent");
  });

  it("does not take a lack of trust for an answer", async () => {
    const { inhibitions, worker } = setUp();
    const stranger = await worker("a");
    let probes = 0;
    stranger.handle(calledEndpoint(record("a"), workerEndpoints.status), async () => {
      probes++;
      throw new StatorError("peer_authentication_failed", "the two have different shared secrets");
    });
    inhibitions.inhibit(record("a", { address: stranger.address }), "unreachable");
    await eventually(() => expect(probes).toBeGreaterThanOrEqual(3));
    expect(inhibitions.reasonOf("a")).toBe("unreachable");
  });

  it("takes a refusal for an answer", async () => {
    const { inhibitions, worker } = setUp();
    const draining = await worker("a");
    draining.stopAccepting();
    inhibitions.inhibit(record("a", { address: draining.address }), "lost");
    await eventually(() => expect(inhibitions.size).toBe(0));
  });

  it("ends when discovery shows another epoch or address, or the worker no more", () => {
    const { inhibitions } = setUp();
    const failed = record("a");
    for (const now of [record("a", { epoch: "e2" }), record("a", { address: "memory://elsewhere" }), undefined]) {
      inhibitions.inhibit(failed, "lost");
      inhibitions.discovered("a", failed);
      expect(inhibitions.size).toBe(1);
      inhibitions.discovered("a", now);
      expect(inhibitions.size).toBe(0);
    }
  });

  it("takes no more after its end", () => {
    const { inhibitions } = setUp();
    inhibitions.inhibit(record("a"), "lost");
    inhibitions.close();
    inhibitions.inhibit(record("b"), "lost");
    expect(inhibitions.size).toBe(0);
  });
});

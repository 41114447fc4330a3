import { pino } from "pino";
import { afterEach, describe, expect, it } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import type { WorkerRecord } from "../../protocol/instance.ts";
import { MemoryNetwork, MemoryRequestPlaneClient } from "../../runtime/request-plane/memory.ts";
import { testCard } from "../test-frontend.contract.ts";
import { Inhibitions } from "./inhibitions.ts";
import { ServedModel } from "./served-model.ts";

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

describe("ServedModel", () => {
  const closers: (() => Promise<void> | void)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0)) await close();
  });

  function setUp() {
    const plane = new MemoryRequestPlaneClient({ network: new MemoryNetwork() });
    const inhibitions = new Inhibitions(plane, pino({ level: "silent" }));
    closers.push(
      () => inhibitions.close(),
      () => plane.close(),
    );
    const model = new ServedModel(testCard, "digest", 1, plane, inhibitions);
    return { model, inhibitions };
  }

  it("leaves failed workers out of the candidates, unless the client names one", () => {
    const { model } = setUp();
    for (const id of ["a", "b"]) model.put(record(id));
    model.workerFailed(model.worker("a"), "silent");
    expect(model.candidates(undefined)).toEqual(["b"]);
    expect(model.candidates("a")).toEqual(["a", "b"]);
    expect(model.candidates(undefined, new Set(["b"]))).toEqual(["a", "b"]);
  });

  it.each([{ epoch: "e2" }, { address: "memory://moved" }])(
    "does not blame %j for what the worker was before",
    (now) => {
      const { model, inhibitions } = setUp();
      const before = record("a");
      model.put(record("a", now));
      model.workerFailed(before, "lost");
      model.workerFailed(undefined, "lost");
      expect(inhibitions.size).toBe(0);
    },
  );

  it("tells errors that speak against a worker from those of a request", () => {
    const { model, inhibitions } = setUp();
    for (const code of ["worker_unreachable", "peer_authentication_failed", "worker_lost"] as const) {
      model.put(record(code));
      model.callFailed(model.worker(code), new StatorError(code, "it is not there"));
      expect(inhibitions.reasonOf(code)).toBe(code === "worker_lost" ? "lost" : "unreachable");
    }
    for (const code of ["overloaded", "draining", "invalid_value", "engine_error"] as const) {
      model.put(record(code));
      model.callFailed(model.worker(code), new StatorError(code, "not now, or not this"));
      expect(inhibitions.reasonOf(code)).toBeUndefined();
    }
  });

  it("knows whether there is anybody else to try", () => {
    const { model } = setUp();
    model.put(record("a"));
    expect(model.hasOther("a")).toBe(false);
    model.put(record("b"));
    expect(model.hasOther("a")).toBe(true);
    expect(model.hasOther("a", new Set(["b"]))).toBe(false);
  });
});

import { Registry } from "prom-client";
import { afterEach, expect, test } from "vitest";
import { encodeGenerateRequest } from "../../protocol/codec.ts";
import type { EngineHealth } from "../../protocol/engine.ts";
import { calledEndpoint, type InstanceRecord, WORKER_COMPONENT } from "../../protocol/instance.ts";
import { RecordingListener } from "../../runtime/discovery/discovery.contract.ts";
import { MemoryDiscovery } from "../../runtime/discovery/memory.ts";
import { HealthBoard } from "../../runtime/health/health-board.ts";
import { callTo, RecordingSink } from "../../runtime/request-plane/plane.contract.ts";
import { TcpRequestPlaneClient } from "../../runtime/request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../../runtime/request-plane/tcp/server.ts";
import { EndpointMetrics } from "../../runtime/telemetry/endpoint-metrics.ts";
import { EchoEngine } from "../echo/echo-engine.ts";
import { requestOf, until } from "./host.contract.ts";
import { WorkerGroup } from "./worker-group.ts";
import { WorkerHost } from "./worker-host.ts";

class EngineThatFallsIll extends EchoEngine {
  isIll = false;

  override async health(): Promise<EngineHealth> {
    return this.isIll ? { state: "unhealthy", reason: "on purpose" } : { state: "ready" };
  }
}

const toClose: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

async function start(count: number, tokenRate = 0) {
  const server = new TcpRequestPlaneServer();
  const client = new TcpRequestPlaneClient();
  const discovery = new MemoryDiscovery();
  const health = new HealthBoard();
  const registry = new Registry();
  const engines = new Map<string, EngineThatFallsIll>();
  const group = new WorkerGroup({
    name: "sim",
    count,
    server,
    health,
    metrics: new EndpointMetrics(registry),
    async makeHost(parts) {
      const engine = new EngineThatFallsIll({ tokenRate });
      engines.set(parts.workerId, engine);
      return new WorkerHost({ ...parts, engine, discovery, healthIntervalMs: 20 });
    },
  });
  toClose.push(
    () => server.close(),
    () => client.close(),
    async () => {
      group.hurry();
      await group.shutdown();
    },
  );
  const listener = new RecordingListener();
  discovery.watch({}, listener);
  const call = (record: InstanceRecord, tokens: number): RecordingSink => {
    const sink = new RecordingSink();
    const endpoint = calledEndpoint({ component: WORKER_COMPONENT, epoch: record.epoch }, "generate");
    client.open(record.address, callTo(endpoint, encodeGenerateRequest(requestOf("abc", tokens))), sink);
    return sink;
  };
  return { group, health, registry, engines, listener, call };
}

test("workers of one process: one address, an epoch each, one part of its health, one label of its metrics", async () => {
  const { group, health, registry, listener, call } = await start(50);
  expect(health.report().parts).toEqual({
    "workers sim-1 to sim-50": "50 of 50 cannot serve, among them sim-1: starting",
  });
  expect((await group.start())?.workerId).toBe("sim-1");
  await listener.until(() => listener.picture.size === 50);
  const records = [...listener.picture.values()];
  expect(new Set(records.map(({ workerId }) => workerId)).size).toBe(50);
  expect(new Set(records.map(({ epoch }) => epoch)).size).toBe(50);
  expect(new Set(records.map(({ address }) => address)).size).toBe(1);
  expect(health.report()).toMatchObject({ status: "ready", parts: { "workers sim-1 to sim-50": "ready" } });
  const sinks = records.map((record) => call(record, 3));
  for (const sink of sinks) expect(await sink.over).toBeUndefined();
  const metrics = await registry.metrics();
  expect(metrics).toMatch(/stator_endpoint_requests_total\{.*endpoint="generate",worker_id="sim"\} 50/);
  expect(metrics).not.toContain("sim-1");
});

test("a worker that falls ill is replaced under its id, and the others do not notice", async () => {
  const { group, engines, listener, call } = await start(3);
  await group.start();
  await listener.until(() => listener.picture.size === 3);
  const before = new Map(listener.picture);
  engines.get("sim-2")!.isIll = true;
  await listener.until(() => {
    const now = listener.picture.get("sim-2");
    return now !== undefined && now.epoch !== before.get("sim-2")!.epoch;
  });
  expect(listener.picture.get("sim-1")).toEqual(before.get("sim-1"));
  expect(listener.picture.get("sim-3")).toEqual(before.get("sim-3"));
  const old = call(before.get("sim-2")!, 3);
  expect(await old.over).toMatchObject({ code: "worker_unreachable" });
  for (const id of ["sim-1", "sim-2", "sim-3"]) expect(await call(listener.picture.get(id)!, 3).over).toBeUndefined();
  expect(group.hosts.size).toBe(3);
});

test("a shutdown lets what runs on any worker end, and refuses what comes", async () => {
  const { group, listener, call } = await start(4, 200);
  await group.start();
  await listener.until(() => listener.picture.size === 4);
  const records = [...listener.picture.values()];
  const running = records.map((record) => call(record, 40));
  await until(() => running.every((sink) => sink.messages.length > 0), "tokens of all");
  const over = group.shutdown();
  await listener.until(() => listener.picture.size === 0);
  expect(await call(records[0]!, 3).over).toMatchObject({ code: "draining" });
  for (const sink of running) expect(await sink.over).toBeUndefined();
  await over;
});

test("a worker that cannot register fails the start, and nothing stays registered", async () => {
  const discovery = new MemoryDiscovery();
  const server = new TcpRequestPlaneServer();
  toClose.push(() => server.close());
  const group = new WorkerGroup({
    name: "sim",
    count: 100,
    server,
    async makeHost(parts) {
      if (parts.workerId === "sim-60") throw new Error("no room");
      return new WorkerHost({ ...parts, engine: new EchoEngine(), discovery });
    },
  });
  await expect(group.start()).rejects.toThrow("no room");
  await group.shutdown();
  const listener = new RecordingListener();
  discovery.watch({}, listener);
  await listener.until(() => listener.events.includes("synced"));
  expect(listener.picture.size).toBe(0);
});

import { trace } from "@opentelemetry/api";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { afterEach, describe, expect, test } from "vitest";
import { decodeTokenDelta, encodeGenerateRequest } from "../../protocol/codec.ts";
import type { TokenDelta } from "../../protocol/generate.ts";
import { calledEndpoint, WORKER_COMPONENT } from "../../protocol/instance.ts";
import { RecordingListener } from "../../runtime/discovery/discovery.contract.ts";
import { MemoryDiscovery } from "../../runtime/discovery/memory.ts";
import { MemoryNetwork, MemoryRequestPlaneServer } from "../../runtime/request-plane/memory.ts";
import { callTo, RecordingSink } from "../../runtime/request-plane/plane.contract.ts";
import { engineContract } from "../conformance/engine.contract.ts";
import { echoContract } from "../echo/echo.contract.ts";
import { EchoEngine } from "../echo/echo-engine.ts";
import {
  finishOf,
  type PlaneKind,
  type Rig,
  remoteEngine,
  requestOf,
  rig,
  ScriptedEngine,
  textOf,
  until,
} from "./host.contract.ts";
import { WorkerHost, type WorkerHostOptions } from "./worker-host.ts";

/** A call to the host of a rig, whose epoch is `e1`. */
function callHost(endpoint: string, body: Uint8Array, timeoutMs?: number) {
  const called = calledEndpoint({ component: WORKER_COMPONENT, epoch: "e1" }, endpoint);
  return timeoutMs === undefined ? callTo(called, body) : callTo(called, body, timeoutMs);
}

const toClose: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  await Promise.all(toClose.splice(0).map((close) => close()));
});

async function start(
  plane: PlaneKind,
  engine: Parameters<typeof rig>[1],
  options?: Partial<WorkerHostOptions>,
): Promise<Rig> {
  const made = await rig(plane, engine, options);
  toClose.push(made.close);
  return made;
}

const token = (byte: number): TokenDelta => ({ tokens: Uint32Array.of(byte) });

engineContract(
  "echo behind a worker host that asks for JSON",
  () => remoteEngine("memory", new EchoEngine({ contextLength: 4096, maxRunning: 8 }), { codec: "json" }),
  {
    ...echoContract,
    makeSlowEngine: () =>
      remoteEngine("memory", new EchoEngine({ contextLength: 4096, tokenRate: 500, maxRunning: 8 })),
  },
);

for (const plane of ["memory", "tcp"] as const) {
  engineContract(
    `echo behind a worker host, ${plane} plane`,
    () => remoteEngine(plane, new EchoEngine({ contextLength: 4096, maxRunning: 8 })),
    {
      ...echoContract,
      makeSlowEngine: () => remoteEngine(plane, new EchoEngine({ contextLength: 4096, tokenRate: 500, maxRunning: 8 })),
    },
  );

  describe(`worker host, ${plane} plane`, () => {
    test("it registers what the engine is, answers status, and leaves discovery on shutdown", async () => {
      const { host, discovery, engine } = await start(plane, new EchoEngine(), { epoch: "e7" });
      const listener = new RecordingListener();
      discovery.watch({}, listener);
      await listener.until(() => listener.picture.has("w1"));
      expect(listener.picture.get("w1")).toMatchObject({
        workerId: "w1",
        epoch: "e7",
        engine: { kind: "echo" },
        address: host.record!.address,
        pid: process.pid,
      });
      expect(await engine.status(AbortSignal.timeout(5000))).toEqual({
        health: { state: "ready" },
        loads: { running: 0, waiting: 0 },
        running: 0,
        queued: 0,
      });
      expect(await host.shutdown()).toEqual({ drained: true, problems: [] });
      await listener.until(() => listener.events.at(-1) === "removed w1 e7");
    });

    test("requests beyond the slots queue in order with their positions; beyond the queue they are refused", async () => {
      const gates: (() => void)[] = [];
      const started: string[] = [];
      const scripted = new ScriptedEngine(async function* (request) {
        started.push(request.requestId);
        await new Promise<void>((resolve) => gates.push(resolve));
        yield finishOf(0);
      }, 2);
      const { host, client, server } = await start(plane, scripted, { maxQueued: 3 });
      const sinks = [0, 1, 2, 3, 4].map((i) => {
        const sink = new RecordingSink();
        client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf(`r${i}`))), sink);
        return sink;
      });
      expect(await Promise.all(sinks.map((sink) => sink.accepted))).toEqual([0, 0, 1, 2, 3]);
      const refused = new RecordingSink();
      client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf("r5"))), refused);
      const error = await refused.over;
      expect(error).toMatchObject({ code: "overloaded" });
      expect(error!.retryAfterSeconds).toBeGreaterThanOrEqual(1);
      expect(refused.events).toEqual(["error overloaded"]);
      expect([host.running, host.queued]).toEqual([2, 3]);
      for (let i = 0; i < 5; i++) {
        await until(() => gates.length > i, "the next one runs");
        gates[i]!();
        await sinks[i]!.over;
      }
      expect(started).toEqual(["r0", "r1", "r2", "r3", "r4"]);
      await until(() => host.running === 0 && host.queued === 0, "all places are free");
    });

    test("in the queue: the timeout is typed, and a cancelled request gives its place back", async () => {
      const { host, client, server, engine } = await start(plane, new EchoEngine({ tokenRate: 100, maxRunning: 1 }), {
        queueTimeoutMs: 200,
        maxQueued: 1,
      });
      const stop = new AbortController();
      const running = textOf(engine, requestOf("long", 100_000), stop.signal).catch(() => {});
      await until(() => host.running === 1, "it runs");
      const cancelled = new RecordingSink();
      const stream = client.open(
        server.address,
        callHost("generate", encodeGenerateRequest(requestOf("q1"))),
        cancelled,
      );
      expect(await cancelled.accepted).toBe(1);
      stream.cancel("kill");
      await until(() => host.queued === 0, "the place is free");
      const late = new RecordingSink();
      client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf("q2"))), late);
      expect(await late.over).toMatchObject({ code: "queue_timeout" });
      stop.abort();
      await running;
      await until(() => host.running === 0, "the slot is free");
      expect(await textOf(engine, requestOf("next", 4))).toBe("abca");
    });

    test("engines that break the rules become engine_error with an id, and nothing of the cause leaks", async () => {
      const logged: Record<string, unknown>[] = [];
      const logger = {
        error: (fields: Record<string, unknown>) => logged.push(fields),
        warn() {},
        debug() {},
      } as never;
      const freed: string[] = [];
      const scripted = new ScriptedEngine(async function* ({ requestId }) {
        try {
          yield token(97);
          if (requestId === "throws") throw new TypeError("secret");
          if (requestId === "goes on") {
            yield finishOf(1);
            yield token(98);
          }
        } finally {
          freed.push(requestId);
        }
      });
      const { engine, host } = await start(plane, scripted, { logger });
      for (const requestId of ["throws", "ends early", "goes on"]) {
        const error = await textOf(engine, requestOf(requestId)).then(
          () => undefined,
          (thrown: unknown) => thrown,
        );
        expect(error).toMatchObject({ code: "engine_error", id: expect.stringMatching(/^err-/) });
        expect(String(error)).not.toContain("secret");
        expect(logged.at(-1)).toMatchObject({ errorId: (error as { id: string }).id, requestId });
      }
      expect(freed).toEqual(["throws", "ends early", "goes on"]);
      expect(host.running).toBe(0);
    });

    test("an engine that never waits starves nobody: others run, and a cancel gets through", async () => {
      const scripted = new ScriptedEngine(async function* ({ requestId, stop }, signal) {
        for (let i = 0; i < stop.maxTokens; i++) {
          if (signal.aborted) {
            yield finishOf(i, "abort");
            return;
          }
          yield token(97);
        }
        yield finishOf(stop.maxTokens);
        void requestId;
      });
      const { engine, host } = await start(plane, scripted);
      const stop = new AbortController();
      let greedyTokens = 0;
      const greedy = (async () => {
        for await (const delta of engine.generate(requestOf("greedy", 1e9), stop.signal))
          greedyTokens += delta.tokens.length;
      })();
      await until(() => greedyTokens > 1000, "it streams");
      expect((await textOf(engine, requestOf("modest", 500))).length).toBe(500);
      stop.abort();
      await greedy.catch(() => {});
      await until(() => host.running === 0, "the greedy one has ended");
    });

    test("a client that takes nothing holds its own stream only, costs its window, and is no stall", async () => {
      let made = 0;
      const unhealthy: string[] = [];
      const scripted = new ScriptedEngine(async function* ({ requestId, stop }) {
        for (let i = 0; i < stop.maxTokens; i++) {
          if (requestId === "slow") made++;
          yield { tokens: new Uint32Array(1000).fill(97) };
        }
        yield finishOf(stop.maxTokens * 1000);
      });
      const { engine, client, server, host } = await start(plane, scripted, {
        stallTimeoutMs: 60,
        onUnhealthy: (reason) => unhealthy.push(reason),
      });
      const slow = new RecordingSink();
      const stream = client.open(
        server.address,
        callHost("generate", encodeGenerateRequest(requestOf("slow", 10_000))),
        slow,
      );
      await until(() => slow.messages.length >= 65, "the window is used up");
      const others = await Promise.all([1, 2, 3].map((i) => textOf(engine, requestOf(`o${i}`, 200))));
      expect(others.map((text) => text.length)).toEqual([200_000, 200_000, 200_000]);
      await new Promise((resolve) => setTimeout(resolve, 150)); // more than the stall timeout: it must not fire
      expect(made).toBeLessThanOrEqual(67);
      expect(unhealthy).toEqual([]);
      stream.cancel("kill");
      await until(() => host.running === 0, "the slow one has ended");
    });

    test.each(["stop", "kill"] as const)("%s reaches the engine, running or not yet", async (kind) => {
      const heard: string[] = [];
      const scripted = new ScriptedEngine(async function* ({ requestId }, signal) {
        yield token(97);
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        heard.push(requestId);
        yield finishOf(1, "abort");
      }, 1);
      const { client, server, host } = await start(plane, scripted);
      const [runs, waits] = ["runs", "waits"].map((id) => {
        const sink = new RecordingSink();
        return client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf(id))), sink);
      });
      await until(() => host.running === 1 && host.queued === 1, "one runs, one waits");
      waits!.cancel(kind);
      await until(() => host.queued === 0, "the place is free");
      runs!.cancel(kind);
      await until(() => host.running === 0, "the slot is free");
      expect(heard).toEqual(["runs"]);
    });

    test("stop ends with the engine's last words and its usage; the deadline is an error", async () => {
      const { client, server } = await start(plane, new EchoEngine({ tokenRate: 200 }));
      const sink = new RecordingSink();
      const stream = client.open(
        server.address,
        callHost("generate", encodeGenerateRequest(requestOf("r", 1e6))),
        sink,
      );
      await until(() => sink.messages.length > 2, "it streams");
      stream.cancel("stop");
      expect(await sink.over).toBeUndefined();
      const late = new RecordingSink();
      client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf("r", 1e6)), 250), late);
      expect(await late.over).toMatchObject({ code: "deadline_exceeded" });
    });

    test("shutdown: new requests hear draining, running and queued ones end, then all is closed", async () => {
      const scripted = new EchoEngine({ tokenRate: 400, maxRunning: 1 });
      const { host, engine, client, server } = await start(plane, scripted);
      const texts = [1, 2, 3].map((i) => textOf(engine, requestOf(`r${i}`, 30)));
      await until(() => host.running === 1 && host.queued === 2, "one runs, two wait");
      const down = host.shutdown();
      const refused = new RecordingSink();
      client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf("new"))), refused);
      expect(await refused.over).toMatchObject({ code: "draining" });
      expect(await Promise.all(texts)).toEqual(Array(3).fill("abc".repeat(10)));
      expect(await down).toEqual({ drained: true, problems: [] });
      expect(scripted.loads().running).toBe(0);
    });

    test("at the end of the grace time what runs and waits is handed over: an error with which it goes on elsewhere", async () => {
      const echo = new EchoEngine({ tokenRate: 50, maxRunning: 2 });
      const { host, engine, client, server } = await start(plane, echo);
      const texts = ["r1", "r2", "r3"].map((id) =>
        textOf(engine, requestOf(id, 1e6)).catch((thrown: unknown) => thrown),
      );
      await until(() => host.running === 2 && host.queued === 1, "two run, one waits");
      const down = host.shutdown();
      host.hurry();
      expect((await down).drained).toBe(false);
      for (const text of texts) expect(await text).toMatchObject({ code: "draining" });
      expect(server.activeCalls).toBe(0);
      expect(echo.loads().running).toBe(0);
      const late = new RecordingSink();
      client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf("late"))), late);
      expect(await late.over).toMatchObject({ class: { migratable: true } });
    });

    test("the hand-over reaches an engine that says `abort`, and a stream whose client takes nothing", async () => {
      const aborts: string[] = [];
      const scripted = new ScriptedEngine(async function* ({ requestId }, signal) {
        yield token(97);
        if (requestId === "flood") while (!signal.aborted) yield { tokens: new Uint32Array(10_000) };
        else await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        aborts.push(requestId);
        yield finishOf(1, "abort");
      });
      const { host, client, server } = await start(plane, scripted);
      const [quiet, flood] = ["quiet", "flood"].map((id) => {
        const sink = new RecordingSink();
        client.open(server.address, callHost("generate", encodeGenerateRequest(requestOf(id))), sink);
        return sink;
      });
      await until(() => quiet!.messages.length > 0 && flood!.messages.length > 1, "both stream");
      const down = host.shutdown();
      host.hurry();
      await down;
      expect(aborts.sort()).toEqual(["flood", "quiet"]);
      for (const sink of [quiet!, flood!]) {
        expect(await sink.over).toMatchObject({ code: "draining" });
        expect(sink.messages.every((message) => decodeTokenDelta(message).finish === undefined)).toBe(true);
      }
    });

    test("a worker that goes away mid-stream takes exactly its own streams along", async () => {
      const [gone, stays] = [
        await start(plane, new EchoEngine({ tokenRate: 300 })),
        await start(plane, new EchoEngine({ tokenRate: 300 })),
      ];
      const open = (made: Rig, maxTokens: number): RecordingSink[] =>
        Array.from({ length: 100 }, (_, i) => {
          const sink = new RecordingSink();
          gone.client.open(
            made.server.address,
            callHost("generate", encodeGenerateRequest(requestOf(`r${i}`, maxTokens))),
            sink,
          );
          return sink;
        });
      // What is to be lost must not end before, however slow this machine is.
      const [lost, kept] = [open(gone, 100_000), open(stays, 60)];
      await until(() => [...lost, ...kept].every((sink) => sink.messages.length > 0), "all stream");
      await gone.server.close();
      for (const sink of lost) expect(await sink.over).toMatchObject({ code: "worker_lost" });
      for (const sink of kept) expect(await sink.over).toBeUndefined();
    });

    test("garbage on the endpoints is a protocol error", async () => {
      const { client, server } = await start(plane, new EchoEngine());
      for (const [endpoint, body] of [
        ["generate", "\xff\xff"],
        ["generate", ""],
        ["tokenize", "x"],
        ["embed", "abc"],
      ] as const) {
        const sink = new RecordingSink();
        client.open(server.address, callHost(endpoint, Buffer.from(body, "latin1")), sink);
        expect(await sink.over, `${endpoint} ${body}`).toMatchObject({ code: "protocol_error" });
      }
    });

    test("200 streams at once over one connection, all complete and right", async () => {
      const { engine, host } = await start(plane, new EchoEngine());
      const texts = await Promise.all(
        Array.from({ length: 200 }, (_, i) => textOf(engine, requestOf(`r${i}`, 300, `<${i}>`))),
      );
      for (const [i, text] of texts.entries()) expect(text).toBe(`<${i}>`.repeat(300).slice(0, 300));
      await until(() => host.running === 0, "at rest");
    });
  });
}

describe("engine watch", () => {
  test("a request that gets nowhere makes the worker unhealthy, once", async () => {
    const unhealthy: string[] = [];
    const scripted = new ScriptedEngine(async function* (_request, signal) {
      yield token(97);
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
      yield finishOf(1, "abort");
    });
    const { engine } = await start("memory", scripted, { stallTimeoutMs: 50, onUnhealthy: (it) => unhealthy.push(it) });
    const stop = new AbortController();
    const text = textOf(engine, requestOf("r"), stop.signal).catch(() => {});
    await until(() => unhealthy.length > 0, "the stall is noticed");
    expect(unhealthy[0]).toContain("no progress");
    await new Promise((resolve) => setTimeout(resolve, 120));
    expect(unhealthy.length).toBe(1);
    stop.abort();
    await text;
  });

  test("signs of life without tokens are progress, and an idle engine is no stall", async () => {
    const unhealthy: string[] = [];
    const scripted = new ScriptedEngine(async function* () {
      for (let i = 0; i < 20; i++) {
        await new Promise((resolve) => setTimeout(resolve, 10));
        yield { tokens: new Uint32Array(0) };
      }
      yield finishOf(0);
    });
    const { engine } = await start("memory", scripted, {
      stallTimeoutMs: 100,
      onUnhealthy: (it) => unhealthy.push(it),
    });
    expect(await textOf(engine, requestOf("r"))).toBe("");
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(unhealthy).toEqual([]);
  });

  test("an engine that reports unhealthy, throws, or does not answer the probe", async () => {
    const failed = Promise.reject(new Error("no"));
    failed.catch(() => {});
    for (const state of [{ state: "unhealthy", reason: "it broke" } as const, failed, new Promise<never>(() => {})]) {
      const unhealthy: string[] = [];
      const scripted = new ScriptedEngine(async function* () {
        yield finishOf(0);
      });
      scripted.healthState = state;
      await start("memory", scripted, {
        healthIntervalMs: 10,
        healthTimeoutMs: 30,
        onUnhealthy: (it) => unhealthy.push(it),
      });
      await until(() => unhealthy.length > 0, "it is noticed");
      await new Promise((resolve) => setTimeout(resolve, 40));
      expect(unhealthy.length).toBe(1);
    }
  });
});

test("a request that cannot be encoded fails alone and does not count as running", async () => {
  const { engine } = await start("memory", new EchoEngine());
  const broken = {
    ...requestOf("broken"),
    get sampling(): never {
      throw new TypeError("not encodable");
    },
  };
  await expect(textOf(engine, broken)).rejects.toThrow("not encodable");
  expect(engine.loads().running).toBe(0);
  await engine.drain(AbortSignal.timeout(5000));
});

test("the engine's span is a child of the caller's", async () => {
  const exporter = new InMemorySpanExporter();
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  try {
    const { client, server } = await start("tcp", new EchoEngine());
    const sink = new RecordingSink();
    const traceparent = `00-${"a".repeat(32)}-${"b".repeat(16)}-01`;
    const call = { ...callHost("generate", encodeGenerateRequest(requestOf("r", 3))), traceparent };
    client.open(server.address, call, sink);
    expect(await sink.over).toBeUndefined();
    const [span] = exporter.getFinishedSpans();
    expect(span!.name).toBe("engine.generate");
    expect(span!.spanContext().traceId).toBe("a".repeat(32));
    expect(span!.parentSpanContext?.spanId).toBe("b".repeat(16));
    expect(span!.attributes).toMatchObject({ "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 3 });
  } finally {
    trace.disable();
  }
});

test.each(["", "a b", "a\r\nx: 1", "\u00e9", ".a", "x".repeat(129)])("%j names no worker and no epoch", (id) => {
  const parts = (names: { workerId: string; epoch?: string }): WorkerHostOptions => ({
    ...names,
    engine: new EchoEngine(),
    server: new MemoryRequestPlaneServer("names", { network: new MemoryNetwork() }),
    discovery: new MemoryDiscovery(),
  });
  expect(() => new WorkerHost(parts({ workerId: id }))).toThrow(expect.objectContaining({ code: "invalid_value" }));
  expect(() => new WorkerHost(parts({ workerId: "w", epoch: id }))).toThrow(
    expect.objectContaining({ code: "invalid_value" }),
  );
});

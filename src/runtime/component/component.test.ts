import { afterEach, describe, expect, test } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { MemoryDiscovery, MemoryStore } from "../discovery/memory.ts";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "../request-plane/memory.ts";
import { TcpRequestPlaneClient } from "../request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../request-plane/tcp/server.ts";
import { Runtime } from "./runtime.ts";

const opened: Runtime[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((runtime) => runtime.shutdown()));
});

type MakeRuntime = (instanceId: string) => Runtime;

const fleets: Record<string, () => MakeRuntime> = {
  memory: () => {
    const [store, network] = [new MemoryStore(), new MemoryNetwork()];
    return (instanceId) =>
      new Runtime({
        instanceId,
        discovery: new MemoryDiscovery(store),
        client: new MemoryRequestPlaneClient({ network }),
        server: new MemoryRequestPlaneServer(instanceId, { network }),
      });
  },
  tcp: () => {
    const store = new MemoryStore();
    return (instanceId) =>
      new Runtime({
        instanceId,
        discovery: new MemoryDiscovery(store),
        client: new TcpRequestPlaneClient(),
        server: new TcpRequestPlaneServer(),
      });
  },
};

describe.each(Object.entries(fleets))("components over %s", (_name, makeFleet) => {
  function fleet(): MakeRuntime {
    const make = makeFleet();
    return (instanceId) => {
      const runtime = make(instanceId);
      opened.push(runtime);
      return runtime;
    };
  }
  const count = (runtime: Runtime, codec: "msgpack" | "json" = "msgpack") =>
    runtime
      .namespace("demo")
      .component("counter")
      .endpoint<{ to: number; bytes?: Uint8Array }, { n: number; by: string; bytes?: Uint8Array }>("count", { codec });
  const serveCount = (runtime: Runtime, codec: "msgpack" | "json" = "msgpack") =>
    count(runtime, codec).serve(async function* ({ to, bytes }) {
      for (let n = 0; n < to; n++) yield { n, by: runtime.instanceId, ...(bytes && { bytes }) };
    });
  async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
    const list: T[] = [];
    for await (const item of items) list.push(item);
    return list;
  }

  test("a served endpoint is found and called, instances in turn, in the codec that each advertises", async () => {
    const make = fleet();
    const [a, b, caller] = [make("a"), make("b"), make("caller")];
    await serveCount(a, "msgpack");
    await serveCount(b, "json");
    const client = count(caller).client();
    await client.ready({ count: 2 });
    const bytes = Uint8Array.of(0, 255, 7);
    const answers = [await all(client.call({ to: 3, bytes })), await all(client.call({ to: 3, bytes }))];
    expect(answers.map((messages) => messages[0]!.by).sort()).toEqual(["a", "b"]);
    for (const messages of answers) {
      expect(messages.map(({ n }) => n)).toEqual([0, 1, 2]);
      expect([...messages[0]!.bytes!]).toEqual([...bytes]);
    }
    expect((await client.ask({ to: 1 }, { instanceId: "b" })).by).toBe("b");
    client.close();
  });

  test("several endpoints and components of one process are one record each; a closed one is not found any more", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const component = server.namespace("demo").component("tools");
    const echo = (name: string) =>
      component.endpoint<string, string>(name).serve(async function* (text) {
        yield `${name} ${text}`;
      });
    const [upper] = await Promise.all([echo("one"), echo("two"), serveCount(server)]);
    const seen = caller.namespace("demo").component("tools");
    const [one, two] = [seen.endpoint<string, string>("one").client(), seen.endpoint<string, string>("two").client()];
    expect(await one.ask("x")).toBe("one x");
    expect(await two.ask("x")).toBe("two x");
    expect(
      two
        .instances()[0]!
        .endpoints.map(({ name }) => name)
        .sort(),
    ).toEqual(["one", "two"]);
    await upper!.close();
    await expect(one.ask("x", { timeoutMs: 200 })).rejects.toMatchObject({ code: "not_ready" });
    expect(await two.ask("x")).toBe("two x");
    await echo("one");
    expect(await one.ask("x")).toBe("one x");
    await expect(echo("one")).rejects.toMatchObject({ code: "invalid_value" });
  });

  test("errors: the handler's own, a parser's, an unknown throw, nobody there, a wrong name", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const name = (runtime: Runtime) =>
      runtime
        .namespace()
        .component("c")
        .endpoint<{ kind: string }, number>("e", {
          parse: (value) => {
            const { kind } = value as { kind?: unknown };
            if (typeof kind !== "string") throw new Error("kind must be text");
            return { kind };
          },
        });
    await name(server).serve(async function* ({ kind }) {
      yield 1;
      if (kind === "typed") throw new StatorError("overloaded", "Full.");
      throw new Error("secret");
    });
    const client = name(caller).client();
    await expect(all(client.call({ kind: "typed" }))).rejects.toMatchObject({ code: "overloaded" });
    await expect(all(client.call({ kind: "other" }))).rejects.toMatchObject({
      code: "internal_error",
      message: expect.not.stringContaining("secret"),
    });
    await expect(client.ask({} as { kind: string })).rejects.toMatchObject({
      code: "invalid_value",
      message: expect.stringContaining("kind must be text"),
    });
    const nobody = caller.namespace().component("nobody").endpoint("e").client();
    await expect(nobody.ask({}, { timeoutMs: 50 })).rejects.toMatchObject({ code: "not_ready" });
    expect(() => caller.namespace("a/b")).toThrow("cannot name a namespace");
    expect(() => caller.namespace().component("")).toThrow("cannot name a component");
  });

  test("leaving the iteration, the signal and the deadline end the handler", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const place = (runtime: Runtime) => runtime.namespace().component("c").endpoint<number, number>("forever");
    const ended: unknown[] = [];
    let stuckCalls = 0;
    await place(server).serve(async function* (request, { signal }) {
      if (request < 0) {
        stuckCalls++;
        await new Promise((resolve) => signal.addEventListener("abort", resolve)); // hears of it, and only then
      }
      try {
        for (let n = 0; ; n++) {
          yield n;
          await new Promise((resolve) => setImmediate(resolve));
          signal.throwIfAborted();
        }
      } finally {
        ended.push(signal.aborted);
      }
    });
    const client = place(caller).client();
    for await (const n of client.call(1)) if (n === 3) break;
    const controller = new AbortController();
    const aborted = all(client.call(1, { signal: controller.signal, timeoutMs: 20_000 }));
    controller.abort();
    await aborted.catch(() => {});
    const deaf = new AbortController();
    const stuck = all(client.call(-1, { signal: deaf.signal, timeoutMs: 20_000 }));
    await until(() => stuckCalls === 1);
    deaf.abort();
    await expect(stuck).rejects.toMatchObject({ code: "client_closed" });
    await expect(all(client.call(1, { timeoutMs: 100 }))).rejects.toMatchObject({ code: "deadline_exceeded" });
    await until(() => ended.length >= 2);
    expect(ended.length).toBeGreaterThanOrEqual(2);
    expect(ended.every(Boolean)).toBe(true);
  });

  test("an instance that is gone is replaced by another before anything has begun", async () => {
    const make = fleet();
    const [a, b, caller] = [make("a"), make("b"), make("caller")];
    await serveCount(a);
    await serveCount(b);
    const client = count(caller).client();
    await client.ready({ count: 2 });
    await a.parts.server.close(); // discovery does not know
    const answers = await Promise.all([1, 2, 3, 4].map(() => client.ask({ to: 1 })));
    expect(answers.map(({ by }) => by)).toEqual(["b", "b", "b", "b"]);
    await expect(client.ask({ to: 1 }, { instanceId: "a" })).rejects.toMatchObject({ code: "worker_unreachable" });
  });

  test("shutdown leaves discovery, lets running calls end, then closes", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const place = (runtime: Runtime) => runtime.namespace().component("c").endpoint<null, string>("slow");
    let finish: () => void = () => {};
    const gate = new Promise<void>((resolve) => {
      finish = resolve;
    });
    await place(server).serve(async function* () {
      yield "begun";
      await gate;
      yield "done";
    });
    const client = place(caller).client();
    const call = client.call(null);
    expect((await call.next()).value).toBe("begun");
    const stopped = server.shutdown();
    await until(() => client.instances().length === 0);
    finish();
    expect((await call.next()).value).toBe("done");
    expect((await call.next()).done).toBe(true);
    expect(await stopped).toEqual({ drained: true, problems: [] });
    await expect(place(server).serve(async function* () {})).rejects.toMatchObject({ code: "draining" });
  });

  test("a handler that has run is not run again elsewhere, whatever error it ends with", async () => {
    const make = fleet();
    const caller = make("caller");
    const place = (runtime: Runtime) => runtime.namespace().component("c").endpoint<null, string>("e");
    let runs = 0;
    for (const id of ["a", "b"]) {
      await place(make(id)).serve(async function* () {
        runs++;
        yield await Promise.reject<string>(new StatorError("draining", "What it needs is going away."));
      });
    }
    const client = place(caller).client();
    await client.ready({ count: 2 });
    await expect(client.ask(null)).rejects.toMatchObject({ code: "draining" });
    expect(runs).toBe(1);
  });

  test("a client that is closed keeps nobody waiting", async () => {
    const client = count(fleet()("caller")).client();
    const waiting = [client.ask({ to: 1 }), client.ready()];
    client.close();
    waiting.push(client.ready());
    for (const it of waiting) await expect(it).rejects.toMatchObject({ code: "draining" });
  });

  test("an endpoint that is being served when the shutdown begins does not come into discovery", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const client = count(caller).client();
    const served = serveCount(server);
    const stopped = server.shutdown();
    await expect(served).rejects.toMatchObject({ code: "draining" });
    await stopped;
    expect(client.instances()).toEqual([]);
  });

  test("endpoints with canaries come and go without a trace at the runtime", async () => {
    const server = fleet()("s");
    const { stopping } = server;
    let listeners = 0;
    const [add, remove] = [stopping.addEventListener.bind(stopping), stopping.removeEventListener.bind(stopping)];
    stopping.addEventListener = (...args: Parameters<typeof add>) => {
      listeners++;
      add(...args);
    };
    stopping.removeEventListener = (...args: Parameters<typeof remove>) => {
      listeners--;
      remove(...args);
    };
    const endpoint = server.namespace().component("c").endpoint<string, string>("e");
    for (let i = 0; i < 3; i++) {
      const served = await endpoint.serve(
        async function* (text) {
          yield text;
        },
        { canary: { request: "x" } },
      );
      await served.close();
    }
    expect(listeners).toBe(0);
  });

  test("an idle endpoint that fails its canary leaves discovery, and comes back when it is well", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const place = (runtime: Runtime) => runtime.namespace().component("c").endpoint<string, string>("e");
    let broken = false;
    await place(server).serve(
      async function* (text) {
        if (broken) throw new StatorError("engine_error", "It is broken.");
        yield text;
      },
      { canary: { request: "x", idleMs: 20, timeoutMs: 5_000 } },
    );
    const client = place(caller).client();
    await client.ready();
    expect(server.health.report()).toMatchObject({ status: "ready", parts: { "default/c/e": "ready" } });
    broken = true;
    await until(() => client.instances().length === 0);
    expect(server.health.report()).toMatchObject({ status: "not_ready", parts: { "default/c/e": "It is broken." } });
    broken = false;
    await client.ready({ timeoutMs: 5_000 });
    await until(() => server.health.report().status === "ready");
    expect(await client.ask("y")).toBe("y");
  });

  test("the system port: health, live, metrics with component labels, metadata", async () => {
    const make = fleet();
    const [server, caller] = [make("s"), make("caller")];
    const adminActions = new Map([["sleep", (argument: unknown) => ({ argument })]]);
    server.show({ record: undefined, adminActions });
    const port = await server.openSystemPort();
    const get = (path: string) => fetch(`http://127.0.0.1:${port}${path}`);
    expect((await get("/health")).status).toBe(503);
    expect((await get("/live")).status).toBe(200);
    await serveCount(server);
    expect((await get("/health")).status).toBe(200);
    const client = count(caller).client();
    await all(client.call({ to: 3 }));
    await until(async () => (await (await get("/metrics")).text()).includes("requests_total{"));
    const labels = 'namespace="demo",component="counter",endpoint="count",worker_id="s"';
    const metrics = await (await get("/metrics")).text();
    expect(metrics).toContain(`stator_endpoint_requests_total{${labels}} 1`);
    expect(metrics).toContain(`stator_endpoint_requests_in_flight{${labels}} 0`);
    expect(await (await get("/metadata")).json()).toMatchObject({
      instanceId: "s",
      components: [{ component: "counter", endpoints: [{ name: "count", codec: "msgpack" }] }],
    });
    const slept = await fetch(`http://127.0.0.1:${port}/engine/sleep`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: '{"level":1}',
    });
    expect(await slept.json()).toEqual({ argument: { level: 1 } });
    expect((await get("/engine/wake")).status).toBe(404);
    await server.shutdown();
    await expect(get("/live")).rejects.toThrow();
  });
});

test("what could not be told to discovery is told later: an endpoint that is well again comes back", async () => {
  const store = new MemoryStore();
  const network = new MemoryNetwork();
  const discovery = new MemoryDiscovery(store);
  const register = discovery.register.bind(discovery);
  const runtime = new Runtime({
    instanceId: "s",
    discovery,
    client: new MemoryRequestPlaneClient({ network }),
    server: new MemoryRequestPlaneServer("s", { network }),
  });
  opened.push(runtime);
  const endpoint = runtime.namespace().component("c").endpoint<string, string>("e");
  const client = endpoint.client();
  const served = await endpoint.serve(async function* (text) {
    yield text;
  });
  await client.ready();
  let failures = 0;
  discovery.register = async (record) => {
    if (failures++ === 0) throw new StatorError("discovery_unavailable", "Not now.");
    return register(record);
  };
  served.report("It is ill.");
  await until(() => client.instances().length === 0);
  served.report(undefined);
  await client.ready({ timeoutMs: 10_000 });
  expect(failures).toBe(2);
});

test("a part that cannot be closed does not keep the others from it", async () => {
  const network = new MemoryNetwork();
  const server = new MemoryRequestPlaneServer("s", { network });
  server.close = () => Promise.reject(new Error("It sticks."));
  const discovery = new MemoryDiscovery();
  let isClosed = false;
  discovery.close = async () => {
    isClosed = true;
  };
  const runtime = new Runtime({ discovery, server, client: new MemoryRequestPlaneClient({ network }) });
  expect(await runtime.shutdown()).toMatchObject({ problems: [expect.objectContaining({ message: "It sticks." })] });
  expect(isClosed).toBe(true);
});

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + 10_000;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error("waited in vain");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

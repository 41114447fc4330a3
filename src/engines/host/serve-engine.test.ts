import { expect, test } from "vitest";
import { Runtime } from "../../runtime/component/runtime.ts";
import { MemoryDiscovery, MemoryStore } from "../../runtime/discovery/memory.ts";
import {
  MemoryNetwork,
  MemoryRequestPlaneClient,
  MemoryRequestPlaneServer,
} from "../../runtime/request-plane/memory.ts";
import { TcpRequestPlaneClient } from "../../runtime/request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../../runtime/request-plane/tcp/server.ts";
import { requestFor, run } from "../conformance/running.contract.ts";
import { EchoEngine } from "../echo/echo-engine.ts";
import { TextEngine } from "../text/text-engine.ts";
import { RemoteEngine } from "./remote-engine.ts";
import { serveEngine } from "./serve-engine.ts";
import { WorkerHost } from "./worker-host.ts";

const engineOf = (name: string) =>
  new TextEngine({
    name,
    async *generate(prompt) {
      yield prompt;
    },
  });

function makeRuntime(store: MemoryStore): Runtime {
  const network = new MemoryNetwork();
  return new Runtime({
    instanceId: "w",
    discovery: new MemoryDiscovery(store),
    client: new MemoryRequestPlaneClient({ network }),
    server: new MemoryRequestPlaneServer("w", { network }),
  });
}

test("an engine and an endpoint of one's own share a runtime; its shutdown ends both", async () => {
  const store = new MemoryStore();
  const runtime = (instanceId: string): Runtime =>
    new Runtime({
      instanceId,
      discovery: new MemoryDiscovery(store),
      client: new TcpRequestPlaneClient(),
      server: new TcpRequestPlaneServer(),
    });
  const [worker, caller] = [runtime("w"), runtime("caller")];
  const place = (it: Runtime) => it.namespace().component("tools").endpoint<string, string>("upper");
  const [served] = await Promise.all([
    serveEngine(worker, new EchoEngine()),
    place(worker).serve(async function* (text) {
      yield text.toUpperCase();
    }),
  ]);
  expect(served.record).toMatchObject({ workerId: "w", epoch: worker.epoch, component: "worker" });
  expect(worker.health.report()).toMatchObject({
    status: "ready",
    parts: { "worker w": "ready", "default/tools/upper": "ready" },
  });
  const client = place(caller).client();
  expect(await client.ask("x")).toBe("X");
  const signal = AbortSignal.timeout(10_000);
  const engine = await RemoteEngine.connect(caller.parts.client, served.record, signal);
  const { tokens } = await run(engine, requestFor(Uint32Array.of(1, 2, 3), { stop: { maxTokens: 4 } }));
  expect([...tokens]).toEqual([1, 2, 3, 1]);
  await served.shutdown();
  await expect(client.ask("x", { timeoutMs: 300 })).rejects.toMatchObject({ code: "not_ready" });
  await caller.shutdown();
});

test("the system port shows what the engine has registered, and its pages", async () => {
  const runtime = makeRuntime(new MemoryStore());
  const worker = await serveEngine(runtime, engineOf("m"));
  const port = await runtime.openSystemPort();
  const page = async (path: string) => (await fetch(`http://127.0.0.1:${port}${path}`)).json();
  expect(await page("/metadata")).toMatchObject({ components: [{ component: "worker", card: { name: "m" } }] });
  expect(await page("/engine/describe")).toMatchObject({ kind: "text" });
  await worker.shutdown();
});

test("an engine that is not healthy leaves discovery", async () => {
  const store = new MemoryStore();
  const engine = engineOf("m");
  const present = new Set<string>();
  const left = new Promise<void>((resolve) => {
    new MemoryDiscovery(store).watch(
      {},
      { onUpsert: ({ workerId }) => void present.add(workerId), onRemoved: () => resolve(), onSynced() {} },
    );
  });
  await serveEngine(makeRuntime(store), engine, { healthIntervalMs: 5 });
  engine.health = async () => ({ state: "unhealthy", reason: "broken" });
  await left;
  expect([...present]).toEqual(["w"]);
});

test("a worker that is shut down while it registers is not left behind in discovery", async () => {
  const discovery = new MemoryDiscovery();
  const register = discovery.register.bind(discovery);
  let goOn: () => void = () => {};
  const begun = new Promise<void>((resolve) => {
    discovery.register = async (record) => {
      resolve();
      await new Promise<void>((go) => {
        goOn = go;
      });
      return register(record);
    };
  });
  const network = new MemoryNetwork();
  const server = new MemoryRequestPlaneServer("w", { network });
  const host = new WorkerHost({ workerId: "w", engine: engineOf("m"), server, discovery });
  const started = host.start();
  await begun;
  await host.shutdown();
  goOn();
  await expect(started).rejects.toMatchObject({ code: "draining" });
  const records: string[] = [];
  await new Promise<void>((resolve) => {
    const onUpsert = ({ workerId }: { workerId: string }): void => void records.push(workerId);
    discovery.watch({}, { onUpsert, onRemoved() {}, onSynced: resolve });
  });
  expect(records).toEqual([]);
});

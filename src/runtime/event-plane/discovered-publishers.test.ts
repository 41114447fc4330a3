import { afterEach, describe, expect, test } from "vitest";
import type { InstanceRecord } from "../../protocol/instance.ts";
import { MemoryDiscovery, MemoryStore } from "../discovery/memory.ts";
import { followPublishers } from "./discovered-publishers.ts";
import { originName } from "./plane.ts";
import { EventPublisher } from "./publisher.ts";
import { eventually, makeOrigin, RecordingListener } from "./recording-listener.contract.ts";
import { EventSubscription } from "./subscription.ts";
import { MemoryEventBus, MemoryEventTransport } from "./transports/memory.ts";

describe("publishers known from discovery", () => {
  const closers: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0).reverse()) await close();
  });
  const bus = new MemoryEventBus();

  async function open(workerId: string, epoch: string): Promise<{ publisher: EventPublisher; record: InstanceRecord }> {
    const transport = new MemoryEventTransport(bus);
    const publisher = await EventPublisher.open(transport, makeOrigin(workerId, epoch), { heartbeatMs: 10 });
    closers.push(
      () => transport.close(),
      () => publisher.close(),
    );
    const { namespace, component } = publisher.origin;
    const events = [
      { topic: "loads", address: "memory-events://elsewhere" },
      { topic: "kv-events", address: publisher.address },
    ];
    const place = { namespace, component, workerId, epoch, address: `memory://${workerId}` };
    return { publisher, record: { ...place, endpoints: [], events, pid: 1, startedAtMs: 0 } };
  }

  function follow(component = "worker") {
    const listener = new RecordingListener();
    const subscription = new EventSubscription({
      transport: new MemoryEventTransport(bus),
      replaySource: { replay: () => Promise.resolve() },
      listener,
      start: "ring",
    });
    const store = new MemoryStore();
    const discovery = new MemoryDiscovery(store);
    const watch = followPublishers(discovery, { namespace: "ns", component }, "kv-events", subscription);
    closers.push(
      () => discovery.close(),
      () => subscription.close(),
      () => watch.close(),
    );
    return { listener, subscription, discovery };
  }

  test("come, restart under another epoch and address, and go", async () => {
    const { listener, discovery } = follow();
    const one = await open("w", "e1");
    const lease = await discovery.register(one.record);
    await eventually(() => listener.resets.length === 1);
    one.publisher.publish(Buffer.from("a"));
    await eventually(() => listener.position(one.publisher.origin) === 1);
    const two = await open("w", "e2");
    const next = await discovery.register(two.record);
    await eventually(() => listener.resets.length === 2);
    two.publisher.publish(Buffer.from("b"));
    await eventually(() => listener.position(two.publisher.origin) === 1);
    await lease.release(); // of the old epoch: the new one stays
    await next.release();
    await eventually(() => listener.gone.length === 2);
    expect(listener.gone).toEqual([one, two].map(({ publisher }) => originName(publisher.origin)));
    expect(listener.problems).toEqual([]);
  });

  test("do not count without the topic, and lose it by an update", async () => {
    const { listener, subscription, discovery } = follow();
    const { record } = await open("w", "e1");
    const lease = await discovery.register({ ...record, events: record.events!.slice(0, 1) });
    const other = await open("v", "e1");
    await discovery.register(other.record);
    await eventually(() => listener.resets.length === 1);
    expect(subscription.stats().publishers).toBe(1);
    await lease.update(record);
    await eventually(() => subscription.stats().publishers === 2);
    await eventually(() => listener.resets.length === 2);
    const { events: _events, ...without } = record;
    await lease.update(without);
    await eventually(() => listener.gone.length === 1);
    expect(subscription.stats().publishers).toBe(1);
  });

  test("of another component are not heard", async () => {
    const { listener, subscription, discovery } = follow("prefill");
    const { record } = await open("w", "e1");
    const prefill = await open("p", "e1");
    await discovery.register(record);
    const origin = { ...prefill.publisher.origin, component: "prefill" };
    const transport = new MemoryEventTransport(bus);
    const publisher = await EventPublisher.open(transport, origin, { heartbeatMs: 10 });
    closers.push(() => publisher.close());
    await discovery.register({
      ...prefill.record,
      component: "prefill",
      events: [{ topic: "kv-events", address: publisher.address }],
    });
    await eventually(() => listener.resets.length === 1);
    expect(listener.resets[0]!.name).toBe(originName(origin));
    expect(subscription.stats().publishers).toBe(1);
  });
});

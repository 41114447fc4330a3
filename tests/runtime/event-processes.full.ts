import { afterEach, describe, expect, test } from "vitest";
import { FileDiscovery } from "../../src/runtime/discovery/file.ts";
import { followPublishers } from "../../src/runtime/event-plane/discovered-publishers.ts";
import { eventually, RecordingListener } from "../../src/runtime/event-plane/recording-listener.contract.ts";
import { RequestPlaneReplay } from "../../src/runtime/event-plane/replay.ts";
import { EventSubscription, type SubscriptionOptions } from "../../src/runtime/event-plane/subscription.ts";
import { ZmqEventTransport } from "../../src/runtime/event-plane/transports/zmq.ts";
import { TcpRequestPlaneClient } from "../../src/runtime/request-plane/tcp/client.ts";
import { temporaryFolder } from "../harness/stator-process.ts";
import { EventWorker } from "./event-worker.ts";

const origin = (workerId: string, epoch: string) => ({
  namespace: "ns",
  component: "worker",
  workerId,
  epoch,
  topic: "kv-events",
});
const numbered = (count: number): string[] => Array.from({ length: count }, (_, i) => `${i}`);

describe("publishers in processes of their own, over zmq", () => {
  const closers: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0).reverse()) await close();
  });

  async function follow(folder: string, options: Partial<SubscriptionOptions> = {}) {
    const listener = new RecordingListener();
    const transport = await ZmqEventTransport.open({ highWaterMark: 20 });
    const client = new TcpRequestPlaneClient();
    const replaySource = new RequestPlaneReplay(client);
    const subscription = new EventSubscription({ transport, replaySource, listener, start: "ring", ...options });
    const discovery = new FileDiscovery({ folder, pollMs: 100, expiryMs: 5000 });
    const watch = followPublishers(discovery, { namespace: "ns" }, "kv-events", subscription);
    closers.push(
      () => transport.close(),
      () => client.close(),
      () => subscription.close(),
      () => discovery.close(),
      () => watch.close(),
    );
    return { listener, subscription };
  }

  test("a publisher that is killed and comes back under another epoch and port", async () => {
    const folder = temporaryFolder();
    const { listener, subscription } = await follow(folder);
    const first = await EventWorker.start({ folder, workerId: "w", epoch: "e1" });
    await first.publish(5000);
    await eventually(
      () => listener.position(origin("w", "e1")) === 5000,
      () => subscription.stats(),
    );
    await first.publish(1000);
    await first.kill();
    const second = await EventWorker.start({ folder, workerId: "w", epoch: "e2" });
    await second.publish(3000);
    await eventually(
      () => listener.position(origin("w", "e2")) === 3000,
      () => subscription.stats(),
    );
    expect(listener.texts(origin("w", "e1")).slice(0, 5000)).toEqual(numbered(5000));
    expect(listener.texts(origin("w", "e2"))).toEqual(numbered(3000));
    expect(listener.resets.map(({ reason, next }) => [reason, next])).toEqual([
      ["new_epoch", 0],
      ["new_epoch", 0],
    ]);
    expect(listener.gone).toHaveLength(1);
    expect(listener.problems).toEqual([]);
  });

  test("200,000 events while the publisher's peer cannot keep up: replayed, or told as lost", async () => {
    const folder = temporaryFolder();
    const { listener, subscription } = await follow(folder, { maxQueuedFrames: 16 });
    const worker = await EventWorker.start({ folder, workerId: "w", epoch: "e1" });
    await worker.publish(1);
    await eventually(() => listener.position(origin("w", "e1")) === 1);
    await worker.publish(199_999);
    await eventually(
      () => listener.position(origin("w", "e1")) === 200_000,
      () => subscription.stats(),
    );
    const lost = listener.resets.filter(({ reason }) => reason === "lost");
    const heard = listener.texts(origin("w", "e1")).length;
    if (lost.length === 0) expect(heard).toBe(200_000);
    else expect(heard).toBeLessThan(200_000);
    expect(listener.problems).toEqual([]);
  });

  test("a publisher that is suspended and wakes goes on without a loss", async () => {
    const folder = temporaryFolder();
    const { listener, subscription } = await follow(folder);
    const worker = await EventWorker.start({ folder, workerId: "w", epoch: "e1" });
    const other = await EventWorker.start({ folder, workerId: "v", epoch: "e1" });
    await worker.publish(100);
    await eventually(() => listener.position(origin("w", "e1")) === 100);
    worker.signal("SIGSTOP");
    await other.publish(5000); // the others are heard meanwhile
    await eventually(() => listener.position(origin("v", "e1")) === 5000);
    worker.signal("SIGCONT");
    await worker.publish(100);
    await eventually(
      () => listener.position(origin("w", "e1")) === 200,
      () => subscription.stats(),
    );
    expect(listener.texts(origin("w", "e1"))).toEqual(numbered(200));
    expect(listener.resets.every(({ reason }) => reason === "new_epoch")).toBe(true);
    expect(listener.problems).toEqual([]);
  });
});

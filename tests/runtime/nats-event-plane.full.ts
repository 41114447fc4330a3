import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { eventPlaneContract } from "../../src/runtime/event-plane/event-plane.contract.ts";
import { EventPublisher } from "../../src/runtime/event-plane/publisher.ts";
import {
  eventually,
  makeOrigin,
  RecordingListener,
} from "../../src/runtime/event-plane/recording-listener.contract.ts";
import { ReplayService, RequestPlaneReplay } from "../../src/runtime/event-plane/replay.ts";
import { EventSubscription } from "../../src/runtime/event-plane/subscription.ts";
import { NatsEventTransport, subjectOf } from "../../src/runtime/event-plane/transports/nats.ts";
import { TcpRequestPlaneClient } from "../../src/runtime/request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../../src/runtime/request-plane/tcp/server.ts";
import { freePort, type RealServer, startNats } from "../harness/real-servers.ts";

let nats: RealServer;
beforeAll(async () => {
  nats = await startNats();
});
afterAll(() => nats?.stop());

eventPlaneContract("the nats event plane", {
  makeTransport: () => NatsEventTransport.open({ servers: nats.url }),
  foreignAddress: "tcp://127.0.0.1:1",
});

describe("the nats event plane and its server", () => {
  const closers: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0).reverse()) await close();
  });

  async function open(): Promise<NatsEventTransport> {
    const transport = await NatsEventTransport.open({ servers: nats.url });
    closers.push(() => transport.close());
    return transport;
  }

  test("a server that is killed and started again: events go on with the next one, without a loss", async () => {
    const publisher = await EventPublisher.open(await open(), makeOrigin("w"), { heartbeatMs: 50 });
    const server = new TcpRequestPlaneServer();
    new ReplayService(server).offer(publisher);
    await server.listen();
    const client = new TcpRequestPlaneClient();
    const listener = new RecordingListener();
    const subscription = new EventSubscription({
      transport: await open(),
      replaySource: new RequestPlaneReplay(client),
      listener,
    });
    closers.push(
      () => client.close(),
      () => server.close(),
      () => publisher.close(),
      () => subscription.close(),
    );
    subscription.upsert({ origin: publisher.origin, address: publisher.address, replayAddress: server.address });
    await eventually(() => listener.resets.length === 1);
    let published = 0;
    const publish = async (count: number): Promise<void> => {
      for (let i = 0; i < count; i++) {
        publisher.publish(Buffer.from(`${published++}`));
        if (i % 10 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
    };
    await publish(1000);
    await eventually(() => listener.position(publisher.origin) === 1000);
    for (let round = 1; round <= 2; round++) {
      await publish(200);
      await nats.kill();
      await publish(2000);
      await nats.restart();
      await publish(200);
      await eventually(
        () => listener.position(publisher.origin) === published,
        () => [publisher.stats(), subscription.stats()],
      );
    }
    expect(listener.texts(publisher.origin)).toEqual(Array.from({ length: published }, (_, i) => `${i}`));
    expect(listener.resets.map(({ reason }) => reason)).toEqual(["new_epoch"]);
    expect(listener.problems).toEqual([]);
    expect(publisher.stats()).toMatchObject({ published: 5800, dropped: 0 });
  });

  test("a server that is suspended makes nobody wait; what is kept for it has a bound", async () => {
    const transport = await open();
    const publisher = await EventPublisher.open(transport, makeOrigin("stuck"), {
      ring: { maxEvents: 300, maxBytes: 4 * 1024 * 1024 },
    });
    closers.push(() => publisher.close());
    nats.signal("SIGSTOP");
    try {
      for (let i = 0; i < 2000; i++) {
        publisher.publish(new Uint8Array(50_000));
        if (i % 50 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
      const stats = publisher.stats();
      expect(stats.published).toBe(2000);
      // Some megabytes went to the client's buffer; then the ring turned over.
      expect(stats.sentFrames).toBeLessThan(500);
      expect(stats.ringBytes).toBeLessThanOrEqual(4 * 1024 * 1024);
    } finally {
      nats.signal("SIGCONT");
    }
    await eventually(() => publisher.stats().dropped > 0);
  });

  test("frames are never larger than what the server takes, and a larger event is refused", async () => {
    const publisher = await EventPublisher.open(await open(), makeOrigin("w"), { frameBytes: 16 * 1024 * 1024 });
    closers.push(() => publisher.close());
    expect(() => publisher.publish(new Uint8Array(1024 * 1024))).toThrow(
      expect.objectContaining({ code: "payload_too_large" }),
    );
    let largest = 0;
    (await open()).connect(publisher.address, (frame) => {
      largest = Math.max(largest, frame.length);
    });
    await eventually(() => {
      for (let i = 0; i < 40; i++) publisher.publish(new Uint8Array(100_000));
      return largest > 0;
    });
    expect(largest).toBeLessThanOrEqual(1024 * 1024);
  });

  test("no server, or an address that is none: typed errors", async () => {
    const servers = `nats://127.0.0.1:${await freePort()}`;
    await expect(NatsEventTransport.open({ servers })).rejects.toMatchObject({ code: "not_ready" });
    const transport = await open();
    for (const address of ["nats:", "nats:a", "nats:a..b", "nats:a.*", "nats:a.>", "nats:a b.c", "tcp://[::1]:1"]) {
      expect(() => transport.connect(address, () => {})).toThrow(
        expect.objectContaining({ code: "worker_unreachable" }),
      );
    }
  });

  test("names cannot leave their place in the subject", () => {
    const subject = subjectOf({ ...makeOrigin("a.b*c>d e%"), topic: "k.v", namespace: "ä" });
    expect(subject).toBe("stator.events.%C3%A4.worker.k%2Ev.a%2Eb%2Ac%3Ed%20e%25");
  });
});

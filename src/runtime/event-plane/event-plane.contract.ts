import { afterEach, describe, expect, test } from "vitest";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "../request-plane/memory.ts";
import { type EventListener, type EventOrigin, type EventTransport, originName } from "./plane.ts";
import { EventPublisher, type PublisherOptions } from "./publisher.ts";
import { eventually, makeOrigin, RecordingListener } from "./recording-listener.contract.ts";
import { ReplayService, RequestPlaneReplay } from "./replay.ts";
import { EventSubscription, type KnownPublisher, type SubscriptionOptions } from "./subscription.ts";

export interface EventPlaneUnderTest {
  /** A transport of another process, as far as the plane can tell. Closed by the suite. */
  makeTransport(): Promise<EventTransport>;
  /** An address of another kind of transport. */
  readonly foreignAddress: string;
}

const text = (value: string): Uint8Array => Buffer.from(value);
const numbered = (from: number, to: number): string[] => Array.from({ length: to - from }, (_, i) => `${from + i}`);

/** A process with one publisher and a request plane for its replays. */
export interface PublishingSide {
  readonly publisher: EventPublisher;
  readonly known: KnownPublisher;
}

export function eventPlaneContract(name: string, plane: EventPlaneUnderTest): void {
  describe(name, () => {
    const closers: (() => unknown)[] = [];
    const network = new MemoryNetwork();
    let servers = 0;
    afterEach(async () => {
      for (const close of closers.splice(0).reverse()) await close();
    });

    async function publish(
      origin: EventOrigin,
      options: PublisherOptions = {},
      withReplay = true,
    ): Promise<PublishingSide> {
      const transport = await plane.makeTransport();
      closers.push(() => transport.close());
      const publisher = await EventPublisher.open(transport, origin, { heartbeatMs: 20, ...options });
      closers.push(() => publisher.close());
      const server = new MemoryRequestPlaneServer(`publisher-${servers++}`, { network });
      closers.push(() => server.close());
      await server.listen();
      const service = new ReplayService(server);
      if (withReplay) service.offer(publisher);
      return { publisher, known: { origin, address: publisher.address, replayAddress: server.address } };
    }

    async function subscribe(
      listener: EventListener,
      options: Partial<SubscriptionOptions> = {},
    ): Promise<EventSubscription> {
      const transport = await plane.makeTransport();
      closers.push(() => transport.close());
      const client = new MemoryRequestPlaneClient({ network });
      closers.push(() => client.close());
      const replaySource = new RequestPlaneReplay(client);
      const subscription = new EventSubscription({ transport, replaySource, listener, retryDelayMs: 5, ...options });
      closers.push(() => subscription.close());
      return subscription;
    }

    /**
     * Publishes what the subscription misses: it has no connection meanwhile. A second subscription tells when all of it
     * has passed.
     */
    async function publishUnheard(
      { publisher, known }: PublishingSide,
      subscription: EventSubscription,
      texts: readonly string[],
    ): Promise<void> {
      const witness = new RecordingListener();
      const second = await subscribe(witness);
      second.upsert(known);
      await eventually(() => witness.resets.length === 1);
      subscription.upsert({ ...known, address: plane.foreignAddress });
      for (const it of texts) {
        publisher.publish(text(it));
        await new Promise((resolve) => setImmediate(resolve)); // one frame each
      }
      await eventually(() => witness.position(known.origin) === publisher.stats().published);
      second.close();
      subscription.upsert(known);
    }

    test("a subscriber hears where a publisher is, then every event once and in order", async () => {
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"));
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      expect(listener.resets).toEqual([{ name: originName(known.origin), reason: "new_epoch", next: 0 }]);
      for (let i = 0; i < 3000; i++) {
        publisher.publish(text(`${i}`));
        if (i % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
      await eventually(
        () => listener.position(known.origin) === 3000,
        () => subscription.stats(),
      );
      expect(listener.texts(known.origin)).toEqual(numbered(0, 3000));
      expect(listener.problems).toEqual([]);
      expect(publisher.stats()).toMatchObject({ published: 3000, dropped: 0 });
      expect(subscription.stats()).toMatchObject({ publishers: 1, events: 3000, lostResets: 0 });
      await eventually(() => subscription.stats().queuedFrames === 0);
    });

    test("events of one tick arrive as one batch", async () => {
      const listener = new RecordingListener();
      const batches: number[] = [];
      const inner = listener.onEvents.bind(listener);
      listener.onEvents = (origin, first, payloads) => {
        batches.push(payloads.length);
        inner(origin, first, payloads);
      };
      const { publisher, known } = await publish(makeOrigin("w"));
      (await subscribe(listener)).upsert(known);
      await eventually(() => listener.resets.length === 1);
      for (let i = 0; i < 10; i++) publisher.publish(text(`${i}`));
      await eventually(() => listener.position(known.origin) === 10);
      expect(batches).toEqual([10]);
    });

    test("empty and large payloads pass as they are; one over the limit is refused", async () => {
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"));
      (await subscribe(listener)).upsert(known);
      await eventually(() => listener.resets.length === 1);
      const large = "x".repeat(300_000);
      for (const payload of ["", large, "", "end"]) publisher.publish(text(payload));
      expect(() => publisher.publish(new Uint8Array(17 * 1024 * 1024))).toThrow(
        expect.objectContaining({ code: "payload_too_large" }),
      );
      await eventually(() => listener.position(known.origin) === 4);
      expect(listener.texts(known.origin)).toEqual(["", large, "", "end"]);
    });

    test("a late subscriber begins with the next event", async () => {
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"));
      for (let i = 0; i < 50; i++) publisher.publish(text(`${i}`));
      await eventually(() => publisher.stats().sentFrames > 0);
      (await subscribe(listener)).upsert(known);
      await eventually(() => listener.resets.length === 1);
      expect(listener.resets[0]).toMatchObject({ reason: "new_epoch", next: 50 });
      publisher.publish(text("50"));
      await eventually(() => listener.position(known.origin) === 51);
      expect(listener.texts(known.origin)).toEqual(["50"]);
    });

    test("or with everything, or with what the ring has left", async () => {
      const whole = new RecordingListener();
      const rest = new RecordingListener();
      const all = await publish(makeOrigin("all"));
      const some = await publish(makeOrigin("some"), { ring: { maxEvents: 10 } });
      for (let i = 0; i < 40; i++) {
        all.publisher.publish(text(`${i}`));
        some.publisher.publish(text(`${i}`));
        await new Promise((resolve) => setImmediate(resolve)); // one frame each
      }
      (await subscribe(whole, { start: "ring" })).upsert(all.known);
      (await subscribe(rest, { start: "ring" })).upsert(some.known);
      await eventually(() => whole.position(all.known.origin) === 40 && rest.position(some.known.origin) === 40);
      expect(whole.resets).toEqual([{ name: originName(all.known.origin), reason: "new_epoch", next: 0 }]);
      expect(whole.texts(all.known.origin)).toEqual(numbered(0, 40));
      expect(rest.resets).toEqual([{ name: originName(some.known.origin), reason: "new_epoch", next: 30 }]);
      expect(rest.texts(some.known.origin)).toEqual(numbered(30, 40));
    });

    test("a restarted publisher is a new origin; frames of its older epoch are dropped", async () => {
      const listener = new RecordingListener();
      const first = await publish(makeOrigin("w", "e1"));
      const subscription = await subscribe(listener);
      subscription.upsert(first.known);
      await eventually(() => listener.resets.length === 1);
      first.publisher.publish(text("old"));
      await eventually(() => listener.position(first.known.origin) === 1);
      const second = await publish(makeOrigin("w", "e2"));
      // The old publisher is still there, and both speak at the address of the new one.
      subscription.upsert({ ...second.known, address: first.known.address });
      expect(listener.gone).toEqual([originName(first.known.origin)]);
      first.publisher.publish(text("late"));
      await eventually(() => subscription.stats().foreignFrames > 0);
      subscription.upsert(second.known);
      await eventually(() => listener.resets.length === 2);
      second.publisher.publish(text("new"));
      await eventually(() => listener.position(second.known.origin) === 1);
      expect(listener.resets[1]).toEqual({ name: originName(second.known.origin), reason: "new_epoch", next: 0 });
      expect(listener.texts(first.known.origin)).toEqual(["old"]);
      expect(listener.texts(second.known.origin)).toEqual(["new"]);
      expect(listener.problems).toEqual([]);
    });

    test("another address of the same epoch goes on where the old one ended", async () => {
      const listener = new RecordingListener();
      const side = await publish(makeOrigin("w"));
      const { publisher, known } = side;
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      publisher.publish(text("0"));
      await eventually(() => listener.position(known.origin) === 1);
      await publishUnheard(side, subscription, ["1", "2"]);
      await eventually(() => listener.position(known.origin) === 3);
      expect(listener.texts(known.origin).slice(-2)).toEqual(["1", "2"]);
      expect(listener.resets.map(({ reason }) => reason)).toEqual(["new_epoch"]);
      expect(subscription.stats()).toMatchObject({ gaps: 1, lostResets: 0 });
    });

    test("what the ring no longer has is told as lost, and the rest follows", async () => {
      const listener = new RecordingListener();
      const side = await publish(makeOrigin("w"), { ring: { maxEvents: 5 } });
      const { known } = side;
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      await publishUnheard(side, subscription, numbered(0, 20));
      await eventually(() => listener.position(known.origin) === 20);
      expect(listener.resets[1]).toEqual({ name: originName(known.origin), reason: "lost", next: 15 });
      expect(listener.texts(known.origin)).toEqual(numbered(15, 20));
      expect(subscription.stats().lostResets).toBe(1);
    });

    test("when nobody answers replays, the gap is told as lost and the events go on", async () => {
      const listener = new RecordingListener();
      const side = await publish(makeOrigin("w"), {}, false);
      const { publisher, known } = side;
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      await publishUnheard(side, subscription, ["0"]);
      await eventually(() => listener.resets.length === 2);
      expect(listener.resets[1]).toMatchObject({ reason: "lost", next: 1 });
      publisher.publish(text("1"));
      await eventually(() => listener.position(known.origin) === 2);
      expect(listener.texts(known.origin)).toEqual(["1"]);
      expect(subscription.stats()).toMatchObject({ failedReplays: 3, lostResets: 1 });
    });

    test("200,000 events in one tick: memory stays bounded, and nothing is missing in silence", async () => {
      const total = 200_000;
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"), {
        ring: { maxEvents: 60_000, maxBytes: 8 * 1024 * 1024 },
      });
      const subscription = await subscribe(listener, { maxQueuedFrames: 64, maxQueuedBytes: 1024 * 1024 });
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      for (let i = 0; i < total; i++) publisher.publish(text(`${i}`));
      const { ringEvents, ringBytes } = publisher.stats();
      expect(ringEvents).toBeLessThanOrEqual(60_000);
      expect(ringBytes).toBeLessThanOrEqual(8 * 1024 * 1024);
      let largest = 0;
      await eventually(
        () => {
          largest = Math.max(largest, subscription.stats().queuedBytes);
          return listener.position(known.origin) === total;
        },
        () => [publisher.stats(), subscription.stats()],
      );
      expect(largest).toBeLessThanOrEqual(1024 * 1024);
      expect(listener.problems).toEqual([]);
      // Every event was delivered, or stands before a reset that says so.
      const events = listener.heard.get(originName(known.origin))!;
      expect(events.every(({ sequence, text: it }) => it === `${sequence}`)).toBe(true);
      let missing = 0;
      let expected = 0;
      for (const { sequence } of events) {
        if (sequence === expected) {
          expected++;
          continue;
        }
        expect(listener.resets).toContainEqual(expect.objectContaining({ reason: "lost", next: sequence }));
        missing += sequence - expected;
        expected = sequence + 1;
      }
      expect(events.length + missing).toBe(total);
      expect(events.length).toBeGreaterThanOrEqual(59_000); // all that was left in the ring, at least
      expect(publisher.stats().dropped).toBe(total - publisher.stats().ringEvents);
    });

    test("nobody listens: publishing goes on, within the ring's bounds", async () => {
      const { publisher } = await publish(makeOrigin("w"), { ring: { maxEvents: 1000 } });
      for (let i = 0; i < 5000; i++) publisher.publish(text(`${i}`));
      await eventually(() => publisher.stats().sentFrames > 0);
      expect(publisher.stats()).toMatchObject({ published: 5000 });
      expect(publisher.stats().ringEvents).toBeLessThanOrEqual(1000);
    });

    test("a removed publisher is gone, and heard no more", async () => {
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"));
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      subscription.remove(known.origin);
      subscription.remove(known.origin);
      expect(listener.gone).toEqual([originName(known.origin)]);
      const { heartbeats } = publisher.stats();
      publisher.publish(text("unheard"));
      await eventually(() => publisher.stats().heartbeats > heartbeats + 2);
      expect(listener.heard.size).toBe(0);
      expect(subscription.stats()).toMatchObject({ publishers: 0, queuedFrames: 0, queuedBytes: 0 });
    });

    test("closing works twice, from inside a listener too, and then nothing is heard", async () => {
      const listener = new RecordingListener();
      const { publisher, known } = await publish(makeOrigin("w"));
      const subscription = await subscribe(listener);
      subscription.upsert(known);
      await eventually(() => listener.resets.length === 1);
      listener.onText = () => subscription.close();
      publisher.publish(text("0"));
      await eventually(() => listener.texts(known.origin).length === 1);
      publisher.publish(text("1"));
      const { heartbeats } = publisher.stats();
      await eventually(() => publisher.stats().heartbeats > heartbeats + 2);
      expect(listener.texts(known.origin)).toEqual(["0"]);
      subscription.close();
      subscription.upsert(known); // too late: nothing happens
      expect(subscription.stats().publishers).toBe(0);
      await publisher.close();
      await publisher.close();
      publisher.publish(text("2"));
      expect(publisher.stats().refused).toBe(1);
    });
  });
}

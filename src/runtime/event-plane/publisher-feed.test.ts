import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { encodeFrame } from "./frame.ts";
import { type EventInlet, type EventOutlet, type EventTransport, originName } from "./plane.ts";
import { EventPublisher } from "./publisher.ts";
import { eventually, makeOrigin, RecordingListener } from "./recording-listener.contract.ts";
import type { ReplayRequest, ReplaySource } from "./replay.ts";
import { EventSubscription, type SubscriptionOptions } from "./subscription.ts";

/** Delivers when told to, in the order it is told. */
class HandTransport implements EventTransport {
  readonly sent: Uint8Array[] = [];
  #receivers = new Set<(frame: Uint8Array) => void>();

  async bind(): Promise<EventOutlet> {
    return {
      address: "hand",
      maxFrameBytes: 1_000_000,
      send: (frame) => {
        this.sent.push(frame);
        return undefined;
      },
      close: async () => {},
    };
  }

  connect(_address: string, onFrame: (frame: Uint8Array) => void): EventInlet {
    this.#receivers.add(onFrame);
    return { close: () => void this.#receivers.delete(onFrame) };
  }

  deliver(frame: Uint8Array): void {
    for (const receiver of this.#receivers) receiver(frame);
  }

  async close(): Promise<void> {}
}

/** Replays of one publisher, frame by frame in turns of their own; every n-th one is cut after some frames. */
class DirectReplay implements ReplaySource {
  publisher: EventPublisher | undefined;
  requests = 0;
  cutEvery = 0;
  answering = 0;
  mostAtOnce = 0;

  async replay(request: ReplayRequest, onFrame: (frame: Uint8Array) => void, signal: AbortSignal): Promise<void> {
    this.answering++;
    this.mostAtOnce = Math.max(this.mostAtOnce, this.answering);
    try {
      const isCut = this.cutEvery > 0 && ++this.requests % this.cutEvery === 0;
      let given = 0;
      for (const frame of this.publisher!.replay(request.from)) {
        if (isCut && given++ === 2) throw new StatorError("worker_lost", "cut");
        await new Promise((resolve) => setImmediate(resolve));
        if (signal.aborted) throw new StatorError("client_closed", "aborted");
        onFrame(frame);
      }
    } finally {
      this.answering--;
    }
  }
}

interface Bench {
  readonly publisher: EventPublisher;
  readonly transport: HandTransport;
  readonly replay: DirectReplay;
  readonly listener: RecordingListener;
  readonly subscription: EventSubscription;
}

async function withBench(
  ringEvents: number,
  options: Partial<SubscriptionOptions>,
  run: (bench: Bench) => Promise<void>,
): Promise<void> {
  const transport = new HandTransport();
  const replay = new DirectReplay();
  const ring = { maxEvents: ringEvents };
  const publisher = await EventPublisher.open(transport, makeOrigin("w"), { ring, frameBytes: 200, heartbeatMs: 1e6 });
  replay.publisher = publisher;
  const listener = new RecordingListener();
  const subscription = new EventSubscription({
    transport,
    replaySource: replay,
    listener,
    retryDelayMs: 1,
    ...options,
  });
  subscription.upsert({ origin: publisher.origin, address: "hand", replayAddress: "hand" });
  try {
    await run({ publisher, transport, replay, listener, subscription });
  } finally {
    subscription.close();
    await publisher.close();
  }
}

/** The heartbeat that ends every replay: what a publisher says about once a second. */
function heartbeat(publisher: EventPublisher): Uint8Array {
  return [...publisher.replay(publisher.stats().published)].at(-1)!;
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** What a lossy network does with each frame. `late` frames arrive after the next ones. */
const fate = fc.constantFrom("pass", "pass", "pass", "drop", "twice", "late", "damaged");
const step = fc.record({ events: fc.integer({ min: 1, max: 12 }), fate, pause: fc.boolean() });

async function sendThrough(steps: readonly (typeof step extends fc.Arbitrary<infer T> ? T : never)[], bench: Bench) {
  const { publisher, transport } = bench;
  const late: Uint8Array[] = [];
  let published = 0;
  for (const { events, fate, pause } of steps) {
    for (let i = 0; i < events; i++) publisher.publish(Buffer.from(`event ${published++}`));
    await turn();
    for (const frame of transport.sent.splice(0)) {
      if (fate === "damaged") transport.deliver(frame.subarray(0, frame.length - 1));
      if (fate === "late") late.push(frame);
      if (fate === "pass" || fate === "twice") transport.deliver(frame);
      if (fate === "twice") transport.deliver(frame);
    }
    if (pause) {
      await turn();
      for (const frame of late.splice(0)) transport.deliver(frame);
    }
  }
  for (const frame of late) transport.deliver(frame);
  return published;
}

/** Heartbeats go on until everything has been dealt with; a single one may find the queue full. */
async function settled({ publisher, transport, listener, subscription }: Bench, published: number): Promise<void> {
  transport.deliver(heartbeat(publisher));
  await eventually(
    () => {
      if (subscription.stats().queuedFrames > 0) return false;
      if (listener.position(publisher.origin) === published) return true;
      transport.deliver(heartbeat(publisher));
      return false;
    },
    () => subscription.stats(),
  );
}

describe("a feed under a transport that loses, repeats, delays and damages frames", () => {
  test("with a ring that is large enough, every event arrives exactly once and in order", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 0, max: 3 }),
        fc.integer({ min: 1, max: 40 }),
        async (steps, cutEvery, maxQueuedFrames) => {
          await withBench(1e6, { start: "ring", maxQueuedFrames }, async (bench) => {
            bench.replay.cutEvery = cutEvery === 1 ? 0 : cutEvery; // always cut would be a publisher that does not answer
            const published = await sendThrough(steps, bench);
            const { listener, publisher } = bench;
            await settled(bench, published);
            const expected = Array.from({ length: published }, (_, i) => `event ${i}`);
            expect(listener.texts(publisher.origin)).toEqual(expected);
            expect(listener.resets.map(({ reason, next }) => [reason, next])).toEqual([["new_epoch", 0]]);
            expect(listener.problems).toEqual([]);
            expect(bench.replay.mostAtOnce).toBeLessThanOrEqual(1);
          });
        },
      ),
      { numRuns: 150 },
    );
  });

  test("with a small ring, what is missing is exactly what the resets say, and the rest is in order", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 1, max: 30 }),
        fc.constantFrom("now" as const, "ring" as const),
        async (steps, ringEvents, start) => {
          await withBench(ringEvents, { start, maxQueuedFrames: 12 }, async (bench) => {
            const published = await sendThrough(steps, bench);
            const { listener, publisher, subscription } = bench;
            await settled(bench, published);
            expect(listener.problems).toEqual([]); // contiguous between resets, resets only forward
            const heard = listener.heard.get(originName(publisher.origin)) ?? [];
            for (const { sequence, text } of heard) expect(text).toBe(`event ${sequence}`);
            expect(new Set(heard.map(({ sequence }) => sequence)).size).toBe(heard.length);
            const stats = subscription.stats();
            expect(stats.lostResets).toBe(listener.resets.filter(({ reason }) => reason === "lost").length);
            expect(stats).toMatchObject({ queuedFrames: 0, queuedBytes: 0, events: heard.length });
          });
        },
      ),
      { numRuns: 150 },
    );
  });

  test("a lost tail is noticed by the heartbeat", async () => {
    await withBench(100, {}, async ({ publisher, transport, listener, subscription }) => {
      transport.deliver(heartbeat(publisher));
      publisher.publish(Buffer.from("tail"));
      await turn();
      transport.sent.length = 0; // lost
      transport.deliver(heartbeat(publisher));
      await eventually(() => listener.position(publisher.origin) === 1);
      expect(listener.texts(publisher.origin)).toEqual(["tail"]);
      expect(subscription.stats()).toMatchObject({ gaps: 1, replayedEvents: 1, lostResets: 0 });
    });
  });

  test("a queue that is full loses its oldest frames, counts them, and gets them by a replay", async () => {
    await withBench(100, { maxQueuedFrames: 16 }, async ({ publisher, transport, listener, subscription }) => {
      transport.deliver(heartbeat(publisher));
      await eventually(() => listener.resets.length === 1);
      for (let i = 0; i < 10; i++) {
        publisher.publish(Buffer.from(`event ${i}`));
        await turn();
      }
      for (const frame of transport.sent) transport.deliver(frame); // one publisher has room for 4
      expect(subscription.stats()).toMatchObject({ overflowFrames: 6, queuedFrames: 4 });
      await eventually(() => listener.position(publisher.origin) === 10);
      expect(listener.texts(publisher.origin)).toEqual(Array.from({ length: 10 }, (_, i) => `event ${i}`));
      expect(subscription.stats()).toMatchObject({ gaps: 1, lostResets: 0 });
    });
  });

  test("of a frame that overlaps what is known only the new part is told", async () => {
    await withBench(100, {}, async ({ publisher, transport, listener }) => {
      const name = Buffer.from(originName(publisher.origin));
      const frame = (first: number, text: string): Uint8Array =>
        encodeFrame(
          name,
          first,
          [...text].map((it) => Buffer.from(it)),
          text.length,
        ).bytes;
      transport.deliver(frame(0, "abc"));
      transport.deliver(frame(1, "bcde"));
      await eventually(() => listener.position(publisher.origin) === 5);
      expect(listener.texts(publisher.origin).join("")).toBe("abcde");
    });
  });

  test("a subscription closed in the middle of a replay hears nothing more and leaves nothing behind", async () => {
    await withBench(1000, {}, async ({ publisher, transport, replay, listener, subscription }) => {
      transport.deliver(heartbeat(publisher));
      for (let i = 0; i < 200; i++) publisher.publish(Buffer.from(`event ${i}`));
      await turn();
      transport.sent.length = 0;
      listener.onText = (text) => {
        if (text !== "event 30") return;
        expect(replay.answering).toBe(1);
        subscription.close();
      };
      transport.deliver(heartbeat(publisher));
      await eventually(() => subscription.stats().publishers === 0 && replay.answering === 0);
      const heard = listener.texts(publisher.origin).length;
      expect(heard).toBeLessThan(50); // the frame with event 30 was the last
      publisher.publish(Buffer.from("more"));
      await turn();
      for (const frame of transport.sent) transport.deliver(frame);
      await turn();
      expect(listener.texts(publisher.origin)).toHaveLength(heard);
      expect(subscription.stats()).toMatchObject({ publishers: 0, queuedFrames: 0, queuedBytes: 0 });
    });
  });

  test("a frame of events that its publisher does not have is dropped, and the real ones are heard", async () => {
    await withBench(1000, {}, async ({ publisher, transport, listener, subscription }) => {
      transport.deliver(heartbeat(publisher));
      for (const first of [77, 2 ** 31]) {
        const forged = Buffer.from(heartbeat(publisher));
        forged.writeUInt32LE(first, 8);
        transport.deliver(forged);
      }
      publisher.publish(Buffer.from("real"));
      await turn();
      for (const frame of transport.sent) transport.deliver(frame);
      await eventually(() => subscription.stats().untrueFrames === 2 && subscription.stats().queuedFrames === 0);
      expect(listener.texts(publisher.origin)).toEqual(["real"]);
      expect(listener.resets).toHaveLength(1);
      expect(subscription.stats()).toMatchObject({ lostResets: 0, failedReplays: 0 });
    });
  });

  test("garbage and frames of others are counted and change nothing", async () => {
    await withBench(1000, {}, async ({ publisher, transport, listener, subscription }) => {
      transport.deliver(heartbeat(publisher));
      await eventually(() => listener.resets.length === 1);
      transport.deliver(new Uint8Array(0));
      transport.deliver(Buffer.from("x".repeat(1000)));
      const other = Buffer.from(heartbeat(publisher));
      other[16] = other[16]! + 1;
      transport.deliver(other);
      publisher.publish(Buffer.from("a"));
      await turn();
      transport.deliver(transport.sent.at(-1)!);
      await eventually(() => listener.position(publisher.origin) === 1);
      expect(subscription.stats()).toMatchObject({ malformedFrames: 2, foreignFrames: 1, gaps: 0, events: 1 });
    });
  });
});

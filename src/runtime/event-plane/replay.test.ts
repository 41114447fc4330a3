import { afterEach, describe, expect, test } from "vitest";
import { pack } from "../../protocol/message-codec.ts";
import { callUnary } from "../request-plane/call-unary.ts";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "../request-plane/memory.ts";
import { type EventFrame, parseFrame } from "./frame.ts";
import { originName } from "./plane.ts";
import { EventPublisher, type PublisherOptions } from "./publisher.ts";
import { makeOrigin } from "./recording-listener.contract.ts";
import { REPLAY_ENDPOINT, ReplayService, RequestPlaneReplay } from "./replay.ts";
import { MemoryEventBus, MemoryEventTransport } from "./transports/memory.ts";

describe("replays over the request plane", () => {
  const closers: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0).reverse()) await close();
  });

  async function open(options: PublisherOptions = {}) {
    const network = new MemoryNetwork();
    const server = new MemoryRequestPlaneServer("worker", { network });
    const client = new MemoryRequestPlaneClient({ network });
    const publisher = await EventPublisher.open(
      new MemoryEventTransport(new MemoryEventBus()),
      makeOrigin("w"),
      options,
    );
    const takeBack = new ReplayService(server).offer(publisher);
    await server.listen();
    closers.push(
      () => publisher.close(),
      () => server.close(),
      () => client.close(),
    );
    const source = new RequestPlaneReplay(client);
    const name = Buffer.from(originName(publisher.origin));
    const frames: EventFrame[] = [];
    const abort = new AbortController();
    const replay = (from: number, onFrame = (_frame: EventFrame): void => {}): Promise<void> =>
      source.replay(
        { address: server.address, origin: publisher.origin, from },
        (bytes) => {
          const frame = parseFrame(bytes, name);
          if (typeof frame === "string") throw new Error(frame);
          frames.push(frame);
          onFrame(frame);
        },
        abort.signal,
      );
    const publish = (count: number, bytes: number): void => {
      for (let i = 0; i < count; i++) publisher.publish(new Uint8Array(bytes));
    };
    return { server, client, publisher, takeBack, frames, abort, replay, publish };
  }

  test("give the frames from the asked sequence on, and then where the publisher is", async () => {
    const { frames, replay, publish } = await open({ frameBytes: 200 });
    publish(10, 70); // two in a frame
    await replay(5);
    expect(frames.map(({ first, count }) => [first, count])).toEqual([
      [4, 2],
      [6, 2],
      [8, 2],
      [10, 0],
    ]);
    frames.length = 0;
    await replay(10);
    await replay(99);
    expect(frames.map(({ first, count }) => [first, count])).toEqual([
      [10, 0],
      [10, 0],
    ]);
  });

  test("a ring that turns over during a slow replay shows as a jump, and the replay ends", async () => {
    const { frames, replay, publish } = await open({ frameBytes: 200_000, ring: { maxEvents: 20 } });
    publish(20, 150_000); // more than the window of the request plane: the replay waits for its reader
    let isFirst = true;
    await replay(0, () => {
      if (isFirst) publish(20, 1);
      isFirst = false;
    });
    expect(frames[0]!.first).toBe(0);
    expect(frames.at(-1)).toMatchObject({ first: 20, count: 0 });
    expect(frames.length).toBeLessThan(21);
  });

  test("an abort in the middle ends it, and nothing is given afterwards", async () => {
    const { frames, replay, publish, abort, server } = await open({ frameBytes: 200_000 });
    publish(40, 150_000);
    await expect(replay(0, () => abort.abort())).rejects.toMatchObject({ code: "client_closed" });
    expect(frames).toHaveLength(1);
    expect(server.activeCalls).toBeLessThanOrEqual(1);
    await expect(replay(0)).rejects.toMatchObject({ code: "client_closed" });
  });

  test("a publisher that is not offered any more, an unknown address and garbage are typed errors", async () => {
    const { replay, takeBack, client, server } = await open();
    for (const body of [new Uint8Array(0), pack(7), pack({ origin: 1, from: 0 }), pack({ origin: "a", from: -1 })]) {
      const call = { endpoint: REPLAY_ENDPOINT, requestId: "r", body, timeoutMs: 5000 };
      const answer = callUnary(client, server.address, call, new AbortController().signal);
      await expect(answer).rejects.toMatchObject({ code: "protocol_error" });
    }
    takeBack();
    await expect(replay(0)).rejects.toMatchObject({ code: "worker_not_found" });
    await server.close();
    await expect(replay(0)).rejects.toMatchObject({ code: "worker_unreachable" });
  });
});

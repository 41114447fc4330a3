import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TimerWheel } from "../../lifecycle/timer-wheel.ts";
import type { ByteLink, ByteLinkEvents } from "../connection/byte-link.ts";
import type { Role } from "../connection/handshake.ts";
import { defaultHeartbeat } from "../connection/heartbeat.ts";
import { Link, type LinkEvents } from "../connection/link.ts";
import { decodeError, FrameType } from "../frames/frames.ts";
import { defaultLimits } from "../limits.ts";
import { callTo, RecordingSink, until } from "../plane.contract.ts";
import { TcpRequestPlaneClient } from "./client.ts";
import { frame, hello, openPayload, rawServer, rawSocket } from "./raw-peer.contract.ts";
import { TcpRequestPlaneServer } from "./server.ts";

/*
 * Peers that send what no peer of ours sends: a typed end of the connection, and a process that goes on.
 */

const server = new TcpRequestPlaneServer({ maxStrangers: 2000 });
const client = new TcpRequestPlaneClient();
const toClose: (() => unknown)[] = [];

beforeAll(async () => {
  server.handle("echo", async (call) => {
    call.send(call.body);
  });
  server.handle("hang", (call) => {
    call.accept(0);
    return new Promise((_, reject) => call.signal.addEventListener("abort", () => reject(call.signal.reason)));
  });
  await server.listen();
});
afterAll(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
  await client.close();
  await server.close();
});

async function isServing(): Promise<void> {
  const sink = new RecordingSink();
  client.open(server.address, callTo("echo", "well"), sink);
  expect(await sink.over).toBeUndefined();
  expect(sink.text).toBe("well");
}

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
/** Two calls, one of them with its body in three pieces, credit, and a cancel: all that a client says. */
const body = Buffer.from("0123456789");
const whole = openPayload("echo", body);
const conversation = Buffer.concat([
  hello,
  frame(FrameType.open, 1, openPayload("echo", Buffer.from("one"))),
  frame(FrameType.part, 2, Buffer.concat([u32(whole.length), whole.subarray(0, 12)])),
  frame(FrameType.open, 3, openPayload("hang")),
  frame(FrameType.part, 2, Buffer.concat([u32(whole.length), whole.subarray(12, 20)])),
  frame(FrameType.ping),
  frame(FrameType.open, 2, whole.subarray(20)),
  frame(FrameType.credit, 3, u32(5)),
  frame(FrameType.cancel, 3, Uint8Array.of(0)),
]);

/** Sends the chunks in separate turns of the event loop. */
async function say(socket: { write(bytes: Uint8Array, done: () => void): unknown }, chunks: readonly Uint8Array[]) {
  for (const chunk of chunks) {
    await new Promise<void>((resolve) => socket.write(chunk, () => resolve()));
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test("a conversation cut at every point is understood the same", async () => {
  for (let at = 1; at < conversation.length; at++) {
    const { socket, frames } = await rawSocket(server.address, toClose);
    await say(socket, [conversation.subarray(0, at), conversation.subarray(at)]);
    const seen = (stream: number) => frames.filter(([, , id]) => id === stream);
    await until(
      () => seen(1).length === 3 && seen(2).length === 3 && seen(3).at(-1)?.[0] === FrameType.error,
      `cut at ${at}`,
    );
    expect(seen(1).map(([type]) => type)).toEqual([FrameType.accept, FrameType.data, FrameType.end]);
    expect(seen(1)[1]![1].toString()).toBe("one");
    expect(seen(2)[1]![1].toString()).toBe("0123456789");
    expect(decodeError(seen(3).at(-1)![1]).code).toBe("client_closed");
    socket.destroy();
  }
  await isServing();
});

test("a conversation that breaks off at any point leaves no call behind, by FIN and by RST", async () => {
  for (let at = 0; at < conversation.length; at++) {
    const { socket, closed } = await rawSocket(server.address, toClose);
    await say(socket, [conversation.subarray(0, at)]);
    if (at % 2 === 0) socket.end();
    else socket.resetAndDestroy();
    await closed;
  }
  await until(() => server.activeCalls === 0, "no call is left");
  await isServing();
});

test("any garbage, alone or after a greeting, ends in a typed error or waits; the server goes on", async () => {
  const before = process.memoryUsage();
  const anyFrame = fc
    .record({
      type: fc.integer({ min: 0, max: 16 }),
      stream: fc.integer({ min: 0, max: 4 }),
      payload: fc.uint8Array({ maxLength: 60 }),
    })
    .map((it) => frame(it.type, it.stream, it.payload));
  const damaged = fc
    .record({ at: fc.nat({ max: conversation.length - 1 }), value: fc.integer({ min: 0, max: 255 }) })
    .map(({ at, value }) => {
      const bytes = Buffer.from(conversation);
      bytes[at] = value;
      return bytes;
    });
  const input = fc.oneof(
    fc.array(fc.uint8Array({ maxLength: 80 }), { maxLength: 6 }),
    fc.array(anyFrame, { maxLength: 8 }).map((frames) => [hello, ...frames]),
    damaged.map((bytes) => [bytes]),
  );
  await fc.assert(
    fc.asyncProperty(input, async (chunks) => {
      const { socket, frames, closed } = await rawSocket(server.address, toClose);
      await say(socket, chunks);
      socket.end();
      await closed;
      const goaway = frames.find(([type]) => type === FrameType.goaway);
      if (goaway) expect(decodeError(goaway[1]).code).toMatch(/^(protocol_error|peer_authentication_failed)$/);
    }),
    { numRuns: 300 },
  );
  await until(() => server.activeCalls === 0, "no call is left");
  await isServing();
  expect(process.memoryUsage().arrayBuffers - before.arrayBuffers).toBeLessThan(100_000_000);
});

test("lengths that cannot be are refused by the header alone, for every type of frame", async () => {
  for (let type = 0; type < 256; type++) {
    const header = frame(type);
    header.writeUInt32LE(0xffffffff, 0);
    const { socket, frames, closed } = await rawSocket(server.address, toClose);
    socket.write(Buffer.concat([hello, header]));
    await closed;
    expect(decodeError(frames.find(([it]) => it === FrameType.goaway)![1])).toMatchObject({ code: "protocol_error" });
  }
  await isServing();
});

test("a peer that asks and asks and never reads is given up, before its answers fill the memory", async () => {
  const strict = new TcpRequestPlaneServer({ limits: { maxQueuedBytes: 8 * 1024 } });
  toClose.push(() => strict.close());
  await strict.listen();
  const pings = Buffer.concat(Array.from({ length: 4096 }, () => frame(FrameType.ping)));
  const calls = Buffer.concat(Array.from({ length: 1024 }, (_, id) => frame(FrameType.open, id, openPayload("no"))));
  for (const asked of [pings, calls]) {
    const { socket, closed } = await rawSocket(strict.address, toClose);
    socket.pause();
    socket.write(hello);
    const ask = (): void => {
      while (!socket.destroyed && socket.write(asked));
    };
    socket.on("drain", ask);
    socket.once("error", () => socket.destroy());
    ask();
    await closed;
  }
  await isServing();
});

test("half a frame, then silence: the connection is given up in time, before and after the greeting, on both sides", async () => {
  const times = { heartbeat: { pingIntervalMs: 30, deadAfterMs: 90 }, tickMs: 10 };
  const strict = new TcpRequestPlaneServer({ ...times, handshakeTimeoutMs: 100 });
  toClose.push(() => strict.close());
  await strict.listen();
  const half = frame(FrameType.open, 1, openPayload("echo")).subarray(0, 15);
  for (const bytes of [hello.subarray(0, 20), Buffer.concat([hello, half])]) {
    const { socket, closed } = await rawSocket(strict.address, toClose);
    socket.write(bytes);
    await closed;
  }
  const patient = new TcpRequestPlaneClient({ ...times, connectTimeoutMs: 100 });
  toClose.push(() => patient.close());
  const accepted = frame(FrameType.accept, 1, Buffer.alloc(4));
  for (const [bytes, code] of [
    [hello.subarray(0, 20), "worker_unreachable"],
    [Buffer.concat([hello, accepted, frame(FrameType.data, 1, Buffer.alloc(50)).subarray(0, 30)]), "worker_lost"],
  ] as const) {
    const address = await rawServer((socket) => socket.once("data", () => socket.write(bytes)), toClose);
    const sink = new RecordingSink();
    patient.open(address, callTo("x"), sink);
    expect(await sink.over).toMatchObject({ code });
    expect(sink.messages).toEqual([]);
  }
});

test("a reset in the middle of a stream is a lost worker; the next call connects anew", async () => {
  let connections = 0;
  const address = await rawServer((socket) => {
    connections++;
    socket.write(hello);
    socket.on("data", (chunk) => {
      if (chunk[4] !== FrameType.open && chunk.length < 60) return;
      const answer = [frame(FrameType.accept, 1, Buffer.alloc(4)), frame(FrameType.data, 1, Buffer.from("to"))];
      if (connections === 1) {
        socket.write(Buffer.concat(answer), () => setImmediate(() => socket.resetAndDestroy()));
      } else socket.write(Buffer.concat([...answer, frame(FrameType.end, 1)]));
    });
  }, toClose);
  const sink = new RecordingSink();
  client.open(address, callTo("x"), sink);
  expect(await sink.over).toMatchObject({ code: "worker_lost" });
  const again = new RecordingSink();
  client.open(address, callTo("x"), again);
  expect(await again.over).toBeUndefined();
  expect(again.text).toBe("to");
});

test("what comes for a stream that has ended is not delivered, and does not hurt the others", async () => {
  const address = await rawServer((socket) => {
    socket.write(hello);
    socket.on("data", (chunk) => {
      for (let id = 1; id <= 2; id++) {
        const header = Buffer.alloc(5);
        header[0] = FrameType.open;
        header.writeUInt32LE(id, 1);
        if (!chunk.includes(header)) continue;
        const end = frame(FrameType.end, id);
        const data = frame(FrameType.data, id, Buffer.from("d"));
        const part = frame(FrameType.part, id, Buffer.concat([u32(3), Buffer.from("p")]));
        socket.write(Buffer.concat([frame(FrameType.accept, id, Buffer.alloc(4)), data, end, data, end, part, data]));
      }
    });
  }, toClose);
  for (let i = 0; i < 2; i++) {
    const sink = new RecordingSink();
    client.open(address, callTo("x"), sink);
    expect(await sink.over).toBeUndefined();
    await new Promise((resolve) => setImmediate(resolve));
    expect(sink.events).toEqual(["accept 0", "data", "end"]);
  }
});

/** A link without a network. */
class DeadEnd implements ByteLink {
  readonly waitingBytes = 0;
  events: ByteLinkEvents | undefined;
  start(events: ByteLinkEvents): void {
    this.events = events;
    events.onOpen();
  }
  write(): void {}
  end(): void {}
  destroy(): void {}
}

test("whatever bytes a link gets, it throws nothing, ends at most once, and says why by the catalogue", () => {
  const wheel = new TimerWheel({ manual: true });
  const anyBytes = fc.array(
    fc.oneof(
      fc.uint8Array({ maxLength: 50 }),
      fc
        .tuple(fc.integer({ min: 1, max: 13 }), fc.integer({ min: 0, max: 3 }), fc.uint8Array({ maxLength: 40 }))
        .map(([type, stream, payload]) => frame(type, stream, payload)),
    ),
    { maxLength: 12 },
  );
  fc.assert(
    fc.property(fc.constantFrom<Role>("client", "server"), fc.boolean(), anyBytes, (role, isGreeted, chunks) => {
      const ends: (string | undefined)[] = [];
      const events: LinkEvents = {
        onReady() {},
        isExpected: () => true,
        onFrame() {},
        onGoaway() {},
        onBatch() {},
        onDrain() {},
        onSent() {},
        onClosed: (_why, error) => ends.push(error?.code),
      };
      const bytes = new DeadEnd();
      const link = new Link(
        role,
        bytes,
        {
          limits: defaultLimits,
          heartbeat: defaultHeartbeat,
          wheel,
          handshakeTimeoutMs: 1000,
          sharedSecret: undefined,
        },
        events,
      );
      link.start();
      if (isGreeted) bytes.events!.onBytes(hello);
      for (const chunk of chunks) bytes.events!.onBytes(chunk);
      expect(ends.length).toBeLessThanOrEqual(1);
      if (ends.length === 0) link.close("the test is over");
      expect(wheel.size).toBe(0);
    }),
    { numRuns: 1000 },
  );
});

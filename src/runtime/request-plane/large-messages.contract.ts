import { afterEach, describe, expect, test } from "vitest";
import { callTo, type PlaneUnderTest, RecordingSink, until } from "./plane.contract.ts";
import type { CallHandler, RequestPlaneClient, RequestPlaneServer } from "./plane.ts";

const MB = 1024 * 1024;

function pattern(size: number, seed: number): Buffer {
  const bytes = Buffer.alloc(size);
  for (let i = 0; i + 4 <= size; i += 4) bytes.writeUInt32LE((i ^ (seed * 0x01000193)) >>> 0, i);
  return bytes;
}

/** What a plane with frames owes to messages that do not fit into one. */
export function largeMessageContract(name: string, plane: PlaneUnderTest): void {
  const toClose: { close(): Promise<void> }[] = [];
  afterEach(async () => {
    await Promise.all(toClose.splice(0).map((item) => item.close()));
  });

  const limits = { maxOpenBytes: 100 * MB, maxDataBytes: 32 * MB };
  const echo: CallHandler = async (call) => {
    call.accept(0);
    if (!call.send(call.body)) await call.ready();
  };

  async function start(
    handlers: Record<string, CallHandler> = {},
  ): Promise<{ client: RequestPlaneClient; server: RequestPlaneServer }> {
    const server = plane.makeServer(limits);
    for (const [endpoint, handler] of Object.entries({ echo, ...handlers })) server.handle(endpoint, handler);
    await server.listen();
    const client = plane.makeClient(limits);
    toClose.push(client, server);
    return { client, server };
  }

  function run(client: RequestPlaneClient, address: string, endpoint: string, body: Uint8Array, timeoutMs = 25_000) {
    const sink = new RecordingSink();
    const stream = client.open(address, callTo(endpoint, body, timeoutMs), sink);
    sink.onMessage = (message) => stream.consumed(message.length);
    return { sink, stream };
  }

  describe(`${name}: large messages`, () => {
    test("sizes around those of a piece arrive whole, there and back", async () => {
      const { client, server } = await start();
      const sizes = [65_519, 65_520, 65_521, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 1_000_000];
      const bodies = sizes.map((size, i) => pattern(size, i));
      const sinks = bodies.map((body) => run(client, server.address, "echo", body).sink);
      for (const [i, sink] of sinks.entries()) {
        expect(await sink.over).toBeUndefined();
        expect(sink.messages.length).toBe(1);
        expect(sink.messages[0]!.equals(bodies[i]!)).toBe(true);
      }
    });

    test("tokens of other streams flow while a body of 100 MB is under way", async () => {
      let ticks = 0;
      const { client, server } = await start({
        length: async (call) => {
          call.send(Buffer.from(String(call.body.length)));
        },
        tick: async (call) => {
          while (!call.signal.aborted) {
            ticks++;
            if (!call.send(Buffer.from("t"))) await call.ready();
            await new Promise((resolve) => setImmediate(resolve));
          }
        },
      });
      const ticking = run(client, server.address, "tick", Buffer.alloc(0));
      await ticking.sink.accepted;
      const large = run(client, server.address, "length", Buffer.alloc(100 * MB));
      const before = ticking.sink.messages.length;
      expect(await large.sink.over).toBeUndefined();
      expect(large.sink.text).toBe(String(100 * MB));
      expect(ticking.sink.messages.length - before).toBeGreaterThan(50);
      expect(ticks).toBeGreaterThanOrEqual(ticking.sink.messages.length);
      ticking.stream.cancel("stop");
      await ticking.sink.over;
    });

    test("a stream keeps its order around a large message, and others get theirs meanwhile", async () => {
      const large = pattern(20 * MB, 9);
      const { client, server } = await start({
        mixed: async (call) => {
          call.accept(0);
          for (const message of [Buffer.from("a"), large, Buffer.from("b"), Buffer.from("c")]) {
            if (!call.send(message)) await call.ready();
          }
        },
      });
      const { sink } = run(client, server.address, "mixed", Buffer.alloc(0));
      await sink.accepted;
      const small = await Promise.all(
        Array.from({ length: 10 }, () => run(client, server.address, "echo", Buffer.from("x")).sink.over),
      );
      expect(small.every((error) => error === undefined)).toBe(true);
      expect(await sink.over).toBeUndefined();
      expect(sink.messages.map((it) => it.length)).toEqual([1, large.length, 1, 1]);
      expect(sink.messages[1]!.equals(large)).toBe(true);
    });

    test("more large bodies than may be under way at once all arrive", async () => {
      const { client, server } = await start();
      const bodies = Array.from({ length: 20 }, (_, i) => pattern(MB + i, i));
      const sinks = bodies.map((body) => run(client, server.address, "echo", body).sink);
      for (const [i, sink] of sinks.entries()) {
        expect(await sink.over).toBeUndefined();
        expect(sink.messages[0]!.equals(bodies[i]!)).toBe(true);
      }
    });

    test("calls that are killed with their body or their answer under way leave nothing behind", async () => {
      const answer = pattern(4 * MB, 5);
      const { client, server } = await start({
        pour: async (call) => {
          call.accept(0);
          for (;;) if (!call.send(answer)) await call.ready();
        },
      });
      for (let round = 0; round < 3; round++) {
        const sending = Array.from({ length: 12 }, (_, i) => run(client, server.address, "echo", pattern(3 * MB, i)));
        const receiving = Array.from({ length: 12 }, () => run(client, server.address, "pour", Buffer.alloc(0)));
        await Promise.all(receiving.map(({ sink }) => sink.accepted));
        await until(() => receiving.some(({ sink }) => sink.messages.length > 0), "answers flow");
        for (const { sink, stream } of [...sending, ...receiving]) {
          stream.cancel("kill");
          const error = await sink.over;
          if (error) expect(error.code).toBe("client_closed");
        }
        const body = pattern(2 * MB, round);
        const { sink } = run(client, server.address, "echo", body);
        expect(await sink.over).toBeUndefined();
        expect(sink.messages[0]!.equals(body)).toBe(true);
      }
      await until(() => server.activeCalls === 0, "no active calls");
    });

    test("a call that is stopped right after its large body arrives and is stopped", async () => {
      let reason: unknown;
      const { client, server } = await start({
        work: async (call) => {
          call.accept(0);
          await new Promise<void>((resolve) => {
            call.signal.addEventListener("abort", () => resolve(), { once: true });
            if (call.signal.aborted) resolve();
          });
          reason = call.signal.reason;
          call.send(Buffer.from(String(call.body.length)));
        },
        echo,
      });
      const { sink, stream } = run(client, server.address, "work", Buffer.alloc(5 * MB));
      await run(client, server.address, "echo", Buffer.alloc(1)).sink.over; // the connection is there
      stream.cancel("stop");
      await sink.over;
      expect(sink.error?.code ?? "none").toMatch(/^(none|client_closed)$/);
      if (!sink.error) expect(reason).toMatchObject({ code: "client_closed" });
      await until(() => server.activeCalls === 0, "no active calls");
    });

    test("a body over the server's limit fails at once, by size and limit, and is never sent", async () => {
      const server = plane.makeServer({ maxOpenBytes: 2 * MB });
      server.handle("echo", echo);
      await server.listen();
      const client = plane.makeClient(limits);
      toClose.push(client, server);
      const { sink } = run(client, server.address, "echo", Buffer.alloc(3 * MB));
      expect(await sink.over).toMatchObject({
        code: "payload_too_large",
        message: expect.stringMatching(new RegExp(`${3 * MB} .*${2 * MB}`)),
      });
      expect(await run(client, server.address, "echo", Buffer.alloc(2 * MB)).sink.over).toBeUndefined();
    });
  });
}

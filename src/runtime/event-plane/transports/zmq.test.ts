import { existsSync, readdirSync } from "node:fs";
import { networkInterfaces } from "node:os";
import { afterEach, describe, expect, test } from "vitest";
import { Publisher } from "zeromq";
import { EventPublisher } from "../publisher.ts";
import { eventually, makeOrigin } from "../recording-listener.contract.ts";
import { ZmqEventTransport } from "./zmq.ts";

const hasIPv6 = (networkInterfaces().lo ?? []).some(({ family }) => family === "IPv6");

/** The library gives a port back some time after the socket was closed. */
async function bindAgain(socket: Publisher, address: string): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await socket.bind(address);
      return;
    } catch (thrown) {
      if (attempt === 1000) throw thrown;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

describe("the zmq transport", () => {
  const closers: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0).reverse()) await close();
  });

  async function open(options = {}): Promise<ZmqEventTransport> {
    const transport = await ZmqEventTransport.open(options);
    closers.push(() => transport.close());
    return transport;
  }

  async function frameThrough(address: string, publisher: EventPublisher): Promise<void> {
    let frames = 0;
    const transport = await open();
    transport.connect(address, () => {
      frames++;
    });
    await eventually(() => frames > 0);
    await publisher.close();
  }

  test.runIf(hasIPv6)("binds and advertises IPv6 in brackets", async () => {
    const publisher = await EventPublisher.open(await open({ host: "::1" }), makeOrigin("w"), { heartbeatMs: 10 });
    expect(publisher.address).toMatch(/^tcp:\/\/\[::1\]:\d+$/);
    await frameThrough(publisher.address, publisher);
  });

  test("shows another host than the one it binds", async () => {
    const transport = await open({ host: "0.0.0.0", advertisedHost: "localhost" });
    const publisher = await EventPublisher.open(transport, makeOrigin("w"), { heartbeatMs: 10 });
    expect(publisher.address).toMatch(/^tcp:\/\/localhost:\d+$/);
    await frameThrough(publisher.address.replace("localhost", "127.0.0.1"), publisher);
  });

  test("a host that is not of this machine, and an address that is none, are typed errors", async () => {
    const transport = await open({ host: "192.0.2.1" });
    await expect(transport.bind()).rejects.toMatchObject({ code: "not_ready" });
    for (const address of ["nats:stator.events.a", "tcp://", "tcp://127.0.0.1:0", "tcp://[::1", ""]) {
      expect(() => transport.connect(address, () => {})).toThrow(
        expect.objectContaining({ code: "worker_unreachable" }),
      );
    }
  });

  test("a subscriber that was there first finds a publisher that comes later, and one that comes back", async () => {
    const first = await EventPublisher.open(await open(), makeOrigin("w"), { heartbeatMs: 10 });
    const { address } = first;
    await first.close();
    let frames = 0;
    (await open()).connect(address, () => {
      frames++;
    });
    // The library's own socket on the same port stands for the restarted publisher.
    for (let round = 0; round < 2; round++) {
      const socket = new Publisher({ linger: 0 });
      closers.push(() => socket.close());
      const before = frames;
      await bindAgain(socket, address);
      const timer = setInterval(() => void socket.send("x").catch(() => {}), 5);
      closers.push(() => clearInterval(timer));
      await eventually(() => frames > before);
      clearInterval(timer);
      socket.close();
    }
  });

  test("a message over the limit costs the connection, not the process", async () => {
    const big = await open({ maxFrameBytes: 1024 * 1024 });
    const publisher = await EventPublisher.open(big, makeOrigin("w"), { heartbeatMs: 10 });
    closers.push(() => publisher.close());
    let largest = 0;
    (await open({ maxFrameBytes: 1000 })).connect(publisher.address, (frame) => {
      largest = Math.max(largest, frame.length);
    });
    await eventually(() => largest > 0);
    publisher.publish(new Uint8Array(100_000));
    await eventually(() => publisher.stats().sentFrames > 0);
    const { heartbeats } = publisher.stats();
    await eventually(() => publisher.stats().heartbeats > heartbeats + 20);
    expect(largest).toBeLessThan(1000);
  });

  test.runIf(existsSync("/proc/self/fd"))("closing gives every socket back", async () => {
    const openFiles = (): number => readdirSync("/proc/self/fd").length;
    const transport = await open();
    let baseline = Number.POSITIVE_INFINITY;
    for (let round = 0; round < 10; round++) {
      let frames = 0;
      const publisher = await EventPublisher.open(transport, makeOrigin("w"), { heartbeatMs: 5 });
      const inlets = Array.from({ length: 4 }, () => transport.connect(publisher.address, () => frames++));
      await eventually(() => frames > 4);
      for (const inlet of inlets) inlet.close();
      await publisher.close();
      if (round === 0) {
        baseline = openFiles();
      }
    }
    // The library closes sockets in a thread of its own.
    await eventually(() => openFiles() <= baseline);
  });

  test("closing is idempotent and closes what is open", async () => {
    const transport = await open();
    const outlet = await transport.bind();
    const inlet = transport.connect(outlet.address, () => {});
    inlet.close();
    inlet.close();
    await transport.close();
    await transport.close();
    await outlet.close();
    expect(await outlet.send(new Uint8Array(1))).toBeUndefined();
  });
});

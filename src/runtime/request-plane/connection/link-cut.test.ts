import { afterEach, expect, test } from "vitest";
import { callTo, RecordingSink, until } from "../plane.contract.ts";
import { TcpRequestPlaneClient } from "../tcp/client.ts";
import { TcpRequestPlaneServer } from "../tcp/server.ts";
import type { ByteLink, ByteLinkEvents } from "./byte-link.ts";
import { LinkCut } from "./link-cut.ts";

const toClose: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

/** The transport below, by hand. */
class Transport implements ByteLink {
  readonly seen: string[] = [];
  waitingBytes = 0;
  events!: ByteLinkEvents;

  start(events: ByteLinkEvents): void {
    this.events = events;
  }
  write(parts: readonly Uint8Array[]): void {
    this.seen.push(Buffer.concat(parts).toString());
  }
  end(): void {
    this.seen.push("end");
  }
  destroy(): void {
    this.seen.push("destroy");
  }
}

function cable() {
  const cut = new LinkCut();
  const transport = new Transport();
  const link = cut.wrap(transport);
  const heard: string[] = [];
  link.start({
    onOpen: () => heard.push("open"),
    onBytes: (chunk) => heard.push(Buffer.from(chunk).toString()),
    onDrain: () => heard.push("drain"),
    onClosed: (why) => heard.push(`closed: ${why}`),
  });
  const write = (text: string): void => link.write([Buffer.from(text)]);
  return { cut, transport, link, heard, write };
}

test("a cable that is whole passes all at once", () => {
  const { transport, link, heard, write } = cable();
  transport.events.onOpen();
  transport.events.onBytes(Buffer.from("in"));
  write("out");
  transport.waitingBytes = 7;
  expect(link.waitingBytes).toBe(7);
  transport.events.onClosed("gone");
  expect(heard).toEqual(["open", "in", "closed: gone"]);
  expect(transport.seen).toEqual(["out"]);
});

test("cut, nothing passes and what waits shows; mended, all passes in order", () => {
  const { cut, transport, link, heard, write } = cable();
  cut.cut();
  transport.events.onOpen();
  const reused = Buffer.from("one");
  transport.events.onBytes(reused);
  reused.write("two"); // a chunk is only valid during the call
  transport.events.onBytes(reused);
  transport.events.onClosed("gone");
  write("12345");
  write("678");
  expect({ heard, seen: transport.seen, waiting: link.waitingBytes }).toEqual({ heard: [], seen: [], waiting: 8 });
  cut.mend();
  expect(heard).toEqual(["open", "one", "two", "closed: gone"]);
  expect(transport.seen).toEqual(["12345", "678"]);
  expect(link.waitingBytes).toBe(0);
  cut.mend();
  expect(heard.length).toBe(4);
});

test("whoever waited for room hears of it when the cable is mended", () => {
  const { cut, heard, write } = cable();
  cut.cut();
  write("x");
  cut.mend();
  expect(heard).toEqual(["drain"]);
});

test("the peer does not hear of an end while the cable is cut, nor do we hear of anything after it", () => {
  for (const ending of ["end", "destroy"] as const) {
    const { cut, transport, link, heard, write } = cable();
    cut.cut();
    write("last words");
    link[ending]();
    transport.events.onBytes(Buffer.from("late"));
    transport.events.onClosed("gone, too");
    expect(transport.seen).toEqual([]);
    cut.mend();
    expect(transport.seen).toEqual(ending === "end" ? ["last words", "end"] : ["destroy"]);
    expect(heard).toEqual([]);
  }
});

test("a connection that ends over what came in through the mended cable hears nothing of the rest", () => {
  const cut = new LinkCut();
  const transport = new Transport();
  const link = cut.wrap(transport);
  const heard: string[] = [];
  link.start({
    onOpen: () => {},
    onBytes: (chunk) => {
      heard.push(Buffer.from(chunk).toString());
      link.destroy();
    },
    onDrain: () => heard.push("drain"),
    onClosed: () => heard.push("closed"),
  });
  cut.cut();
  for (const text of ["bad", "worse"]) transport.events.onBytes(Buffer.from(text));
  transport.events.onClosed("gone");
  cut.mend();
  expect(heard).toEqual(["bad"]);
  expect(transport.seen).toEqual(["destroy"]);
});

test("a peer that sends more than a cut link holds loses the connection", () => {
  const { cut, transport, heard } = cable();
  cut.cut();
  const chunk = Buffer.alloc(1024 * 1024);
  for (let i = 0; i < 65; i++) transport.events.onBytes(chunk);
  expect(transport.seen).toEqual(["destroy"]);
  expect(heard).toEqual(["closed: more came in than a cut link holds"]);
});

async function plane(heartbeat?: { pingIntervalMs: number; deadAfterMs: number }) {
  const cut = new LinkCut();
  const server = new TcpRequestPlaneServer({ wrapLink: cut.wrap });
  let tick: () => void = () => {};
  server.handle("ticks", async (call) => {
    call.accept(0);
    await new Promise<void>((resolve, reject) => {
      call.signal.addEventListener("abort", () => reject(call.signal.reason));
      tick = () => {
        if (call.body.length > 0) call.send(Buffer.from("tick"));
        resolve();
      };
    });
  });
  await server.listen();
  toClose.push(() => server.close());
  const client = new TcpRequestPlaneClient({ tickMs: 10, connectTimeoutMs: 400, ...(heartbeat && { heartbeat }) });
  toClose.push(() => client.close());
  const open = () => {
    const sink = new RecordingSink();
    client.open(server.address, callTo("ticks", "x", 20_000), sink);
    return sink;
  };
  return { cut, server, open, tick: () => tick() };
}

test("over TCP: an answer made while the cable is cut comes when it is mended", async () => {
  const { cut, server, open, tick } = await plane();
  const sink = open();
  await sink.accepted;
  cut.cut();
  tick();
  await until(() => server.activeCalls === 0, "the call is over on the server");
  expect(sink.events).toEqual(["accept 0"]);
  cut.mend();
  expect(await sink.over).toBeUndefined();
});

test("over TCP: cut for long, the client gives the peer up, and a new connection works when it is mended", async () => {
  const { cut, server, open, tick } = await plane({ pingIntervalMs: 50, deadAfterMs: 200 });
  const sink = open();
  await sink.accepted;
  cut.cut();
  expect(await sink.over).toMatchObject({ code: "worker_lost" });
  expect(await open().over).toMatchObject({ code: "worker_unreachable" }); // takes connections, and says nothing
  cut.mend();
  await until(() => server.activeCalls === 0, "the server hears that the client has left");
  let again = open();
  // Until the back-off of the client is over.
  await until(() => {
    if (again.error) again = open();
    return again.events.includes("accept 0");
  }, "a new call is taken");
  tick();
  expect(await again.over).toBeUndefined();
});

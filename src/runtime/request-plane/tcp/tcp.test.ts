import { type ChildProcess, spawn } from "node:child_process";
import { connect, Socket } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { StatorError } from "../../../protocol/errors.ts";
import { decodeError, FrameType } from "../frames/frames.ts";
import { defaultLimits } from "../limits.ts";
import { callTo, RecordingSink, until } from "../plane.contract.ts";
import { formatTcpAddress } from "./address.ts";
import { TcpRequestPlaneClient } from "./client.ts";
import { frame, hello, helloPayload, openPayload, rawServer, rawSocket, targetOf } from "./raw-peer.contract.ts";
import { TcpRequestPlaneServer } from "./server.ts";

const toClose: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

async function makeServer(options: ConstructorParameters<typeof TcpRequestPlaneServer>[0] = {}) {
  const server = new TcpRequestPlaneServer(options);
  server.handle("echo", async (call) => {
    call.accept(0);
    call.send(call.body);
  });
  server.handle("hang", (call) => {
    call.accept(0);
    return new Promise((_, reject) => call.signal.addEventListener("abort", () => reject(call.signal.reason)));
  });
  await server.listen();
  toClose.push(() => server.close());
  return server;
}

function makeClient(options: ConstructorParameters<typeof TcpRequestPlaneClient>[0] = {}) {
  const client = new TcpRequestPlaneClient(options);
  toClose.push(() => client.close());
  return client;
}

function run(client: TcpRequestPlaneClient, address: string, endpoint = "echo", timeoutMs = 10_000): RecordingSink {
  const sink = new RecordingSink();
  client.open(address, callTo(endpoint, "x", timeoutMs), sink);
  return sink;
}

test("strangers are told a protocol error and closed; the server goes on", async () => {
  const server = await makeServer();
  const wrongMagic = helloPayload();
  wrongMagic[0] = 0;
  const wrongVersion = helloPayload();
  wrongVersion[4] = 9;
  const openTwice = openPayload("hang");
  const badInputs = [
    Buffer.from("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    frame(FrameType.hello, 0, wrongMagic),
    frame(FrameType.hello, 0, wrongVersion),
    frame(FrameType.data, 1, Buffer.from("before the hello")),
    Buffer.concat([hello, hello]),
    Buffer.concat([hello, frame(FrameType.data, 1)]),
    Buffer.concat([hello, frame(FrameType.open, 1, Buffer.from("short"))]),
    Buffer.concat([hello, frame(FrameType.open, 1, openTwice), frame(FrameType.open, 1, openTwice)]),
    Buffer.concat([hello, frame(FrameType.credit, 1, Buffer.from("abc"))]),
    Buffer.concat([hello, Buffer.alloc(9, 0xff)]),
  ];
  for (const bytes of badInputs) {
    const { socket, frames, closed } = await rawSocket(server.address, toClose);
    socket.write(bytes);
    await closed;
    const goaway = frames.find(([type]) => type === FrameType.goaway);
    expect(decodeError(goaway![1])).toMatchObject({ code: "protocol_error" });
  }
  await until(() => server.activeCalls === 0, "no calls of strangers");
  expect(await run(makeClient(), server.address).over).toBeUndefined();
});

test("a server that is a stranger, or speaks another version, is unreachable, and says why", async () => {
  const wrongVersion = helloPayload();
  wrongVersion[4] = 1;
  for (const bytes of [Buffer.from("HTTP/1.1 400 Bad Request\r\n\r\n"), frame(FrameType.hello, 0, wrongVersion)]) {
    const address = await rawServer((socket) => socket.write(bytes), toClose);
    const client = makeClient();
    for (let i = 0; i < 2; i++) {
      expect(await run(client, address).over).toMatchObject({
        code: "worker_unreachable",
        message: expect.stringMatching(/broke the request-plane protocol: .*[^.]\.( \(The last attempt; .*\))?$/),
      });
    }
  }
});

test("a server that sends more than it may, or nonsense, is lost", async () => {
  const accept = frame(FrameType.accept, 1, Buffer.alloc(4));
  const data = frame(FrameType.data, 1, Buffer.alloc(1000));
  for (const [bytes, code] of [
    [[accept, data, data, data], "worker_lost"],
    [[accept, frame(FrameType.open, 1, Buffer.alloc(20))], "worker_lost"],
    [[frame(FrameType.accept, 1)], "worker_unreachable"],
  ] as const) {
    const address = await rawServer((socket) => {
      socket.write(hello);
      socket.on("data", () => socket.write(Buffer.concat(bytes)));
    }, toClose);
    const client = makeClient({ limits: { windowBytes: 1000, maxDataBytes: 1000 } });
    expect(await run(client, address).over).toMatchObject({ code });
  }
});

test("a connection that says nothing is closed; one that is not answered is unreachable in time", async () => {
  const server = await makeServer({ handshakeTimeoutMs: 50, tickMs: 10 });
  const { closed } = await rawSocket(server.address, toClose);
  await closed;
  const silent = await rawServer(() => {}, toClose);
  const began = performance.now();
  const sink = run(makeClient({ connectTimeoutMs: 60, tickMs: 10 }), silent);
  expect(await sink.over).toMatchObject({ code: "worker_unreachable" });
  expect(performance.now() - began).toBeLessThan(2000);
});

test("a peer that falls silent is lost after its time, and its calls are aborted on the other side", async () => {
  const heartbeat = { pingIntervalMs: 30, deadAfterMs: 90 };
  // A server that accepts and then never says anything again, as a stopped process does.
  const frozen = await rawServer((socket) => {
    socket.write(hello);
    socket.once("data", () => socket.once("data", () => socket.write(frame(FrameType.accept, 1, Buffer.alloc(4)))));
  }, toClose);
  const sink = run(makeClient({ heartbeat, tickMs: 10 }), frozen);
  await sink.accepted;
  expect(await sink.over).toMatchObject({ code: "worker_lost" });

  const server = await makeServer({ heartbeat, tickMs: 10 });
  const { socket } = await rawSocket(server.address, toClose);
  const open = openPayload("hang");
  socket.write(Buffer.concat([hello, frame(FrameType.open, 1, open)]));
  await until(() => server.activeCalls === 1, "the call runs");
  await until(() => server.activeCalls === 0, "the silent client is given up");
});

test("a peer that answers pings lives, however long its streams are silent", async () => {
  const heartbeat = { pingIntervalMs: 20, deadAfterMs: 60 };
  const server = await makeServer({ heartbeat, tickMs: 5 });
  const client = makeClient({ heartbeat, tickMs: 5 });
  const sink = run(client, server.address, "hang", 400);
  expect(await sink.over).toMatchObject({ code: "deadline_exceeded" });
});

test("one connection for all calls; a lost one takes its streams along and the next call opens another", async () => {
  let connections = 0;
  const sockets: Socket[] = [];
  const server = await makeServer();
  const target = targetOf(server.address);
  const address = await rawServer((socket) => {
    connections++;
    const upstream = connect(target);
    sockets.push(socket, upstream);
    upstream.on("error", () => {});
    toClose.push(() => upstream.destroy());
    socket.pipe(upstream).pipe(socket);
  }, toClose);
  const client = makeClient();
  const sinks = Array.from({ length: 20 }, () => run(client, address, "hang"));
  await Promise.all(sinks.map((sink) => sink.accepted));
  expect(connections).toBe(1);
  const direct = run(client, server.address, "hang");
  await direct.accepted;
  for (const socket of sockets) socket.resetAndDestroy();
  for (const sink of sinks) expect(await sink.over).toMatchObject({ code: "worker_lost" });
  await until(() => server.activeCalls === 1, "only the direct call is left");
  expect(direct.events).toEqual(["accept 0"]);
  expect(await run(client, address).over).toBeUndefined();
  expect(connections).toBe(2);
});

/** Another process that speaks just enough of the protocol: it says hello and accepts every call for ever. */
async function acceptingProcess(): Promise<{ child: ChildProcess; address: string }> {
  const script = `
    const hello = Buffer.from("${hello.toString("hex")}", "hex");
    const server = require("node:net").createServer((socket) => {
      socket.write(hello);
      let bytes = Buffer.alloc(0);
      socket.on("error", () => {});
      socket.on("data", (chunk) => {
        bytes = Buffer.concat([bytes, chunk]);
        while (bytes.length >= 9 && bytes.length >= 9 + bytes.readUInt32LE(0)) {
          const size = 9 + bytes.readUInt32LE(0);
          const frame = Buffer.alloc(13);
          frame.writeUInt32LE(4, 0);
          frame[4] = ${FrameType.accept};
          bytes.copy(frame, 5, 5, 9);
          if (bytes[4] === ${FrameType.open}) socket.write(frame);
          if (bytes[4] === ${FrameType.ping}) socket.write(Buffer.from([0, 0, 0, 0, ${FrameType.pong}, 0, 0, 0, 0]));
          bytes = bytes.subarray(size);
        }
      });
    });
    server.listen(0, "127.0.0.1", () => console.log(server.address().port));`;
  const child = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "inherit"] });
  toClose.push(() => child.kill("SIGKILL"));
  const port = await new Promise<number>((resolve) => child.stdout!.once("data", (text) => resolve(Number(text))));
  return { child, address: formatTcpAddress("127.0.0.1", port) };
}

test("a killed process takes exactly its streams along; a stopped one is noticed in time and cannot be reached", async () => {
  const [killed, stopped] = await Promise.all([acceptingProcess(), acceptingProcess()]);
  const server = await makeServer();
  const client = makeClient({
    heartbeat: { pingIntervalMs: 200, deadAfterMs: 800 },
    connectTimeoutMs: 400,
    tickMs: 10,
  });
  const open = (address: string): RecordingSink[] => Array.from({ length: 100 }, () => run(client, address, "hang"));
  const [ofKilled, ofStopped, others] = [open(killed.address), open(stopped.address), open(server.address)];
  await Promise.all([...ofKilled, ...others].map((sink) => sink.accepted));
  killed.child.kill("SIGKILL");
  for (const sink of ofKilled) expect(await sink.over).toMatchObject({ code: "worker_lost" });
  await Promise.all(ofStopped.map((sink) => sink.accepted));
  stopped.child.kill("SIGSTOP");
  for (const sink of ofStopped) expect(await sink.over).toMatchObject({ code: "worker_lost" });
  expect(await run(client, stopped.address).over).toMatchObject({ code: "worker_unreachable" });
  expect(others.every((sink) => sink.error === undefined)).toBe(true);
  expect(await run(client, server.address).over).toBeUndefined();
});

test("after a failed attempt calls fail at once until the back-off is over", async () => {
  const server = await makeServer();
  const { port } = targetOf(server.address);
  await server.close();
  const client = makeClient();
  const address = formatTcpAddress("127.0.0.1", port);
  expect((await run(client, address).over)!.message).toContain("ECONNREFUSED");
  // On a slow machine the back-off may be over by the next call; then it fails anew, and the back-off is longer.
  const messages: string[] = [];
  while (messages.length < 20 && !messages.at(-1)?.includes("next one in")) {
    messages.push((await run(client, address).over)!.message);
  }
  expect(messages.at(-1)).toContain("next one in");
  const again = await makeServer({ port });
  expect(again.address).toBe(address);
  const end = performance.now() + 5000;
  let error: StatorError | undefined = new StatorError("not_ready", "");
  while (error && performance.now() < end) error = await run(client, address).over;
  expect(error).toBeUndefined();
});

test("limits on connections and streams are typed refusals", async () => {
  const server = await makeServer({ limits: { maxConnections: 1, maxStreams: 2 } });
  const first = makeClient();
  const running = [run(first, server.address, "hang"), run(first, server.address, "hang")];
  await Promise.all(running.map((sink) => sink.accepted));
  expect(await run(first, server.address).over).toMatchObject({ code: "overloaded" });
  expect(await run(makeClient(), server.address).over).toMatchObject({ code: "overloaded" });
  expect(running.every((sink) => sink.error === undefined)).toBe(true);
});

test("a server that reads slowly costs bounded memory at its clients' senders", async () => {
  // The client stops reading its socket: what waits in the server stays near maxQueuedBytes, whatever the windows allow.
  const server = new TcpRequestPlaneServer({ limits: { maxQueuedBytes: 100_000, windowBytes: 1e9 } });
  let sent = 0;
  server.handle("pour", async (call) => {
    for (let i = 0; i < 1000; i++) {
      sent += 10_000;
      if (!call.send(Buffer.alloc(10_000))) await call.ready();
    }
  });
  await server.listen();
  toClose.push(() => server.close());
  const { socket } = await rawSocket(server.address, toClose);
  socket.pause();
  const wide = frame(FrameType.hello, 0, helloPayload({ ...defaultLimits, windowBytes: 1e9 }));
  const open = openPayload("pour");
  socket.write(Buffer.concat([wide, ...[1, 2, 3, 4].map((id) => frame(FrameType.open, id, open))]));
  let before = -1;
  // Until nothing moves any more: kernel buffers are full and the handlers wait.
  await until(() => {
    const still = sent > 0 && sent === before;
    before = sent;
    return still;
  }, "the senders wait");
  socket.resume();
  await until(() => server.activeCalls === 0, "all is sent after the reader came back");
  expect(sent).toBe(40_000_000);
});

test("an accept is with the kernel before the handler goes on, which may hold the thread", async () => {
  const server = await makeServer();
  const write = vi.spyOn(Socket.prototype, "write");
  toClose.push(() => write.mockRestore());
  let writes = -1;
  server.handle("busy", async (call) => {
    const before = write.mock.calls.length;
    call.accept(0);
    writes = write.mock.calls.length - before;
  });
  const sink = new RecordingSink();
  makeClient().open(server.address, callTo("busy"), sink);
  await sink.over;
  expect(writes).toBe(1);
  expect(sink.events).toEqual(["accept 0", "end"]);
});

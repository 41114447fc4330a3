import { connect } from "node:net";
import { networkInterfaces } from "node:os";
import { afterEach, describe, expect, test } from "vitest";
import { ca, client, server, stranger } from "../../security/test-certificates.contract.ts";
import { Handshake } from "../connection/handshake.ts";
import { encodeHello, FrameType, NONCE_BYTES } from "../frames/frames.ts";
import { defaultLimits } from "../limits.ts";
import { callTo, RecordingSink, until } from "../plane.contract.ts";
import { TcpRequestPlaneClient } from "./client.ts";
import { frame, hello, openPayload, rawServer, rawSocket, targetOf } from "./raw-peer.contract.ts";
import { TcpRequestPlaneServer } from "./server.ts";

type ServerOptions = ConstructorParameters<typeof TcpRequestPlaneServer>[0];
type ClientOptions = ConstructorParameters<typeof TcpRequestPlaneClient>[0];

const secret = "one secret for all of us";
const toClose: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

async function makeServer(options: ServerOptions = {}) {
  const made = new TcpRequestPlaneServer(options);
  made.handle("echo", async (call) => {
    call.send(call.body);
  });
  await made.listen();
  toClose.push(() => made.close());
  return made;
}

function makeClient(options: ClientOptions = {}) {
  const made = new TcpRequestPlaneClient(options);
  toClose.push(() => made.close());
  return made;
}

async function call(address: string, options: ClientOptions = {}): Promise<string> {
  const sink = new RecordingSink();
  makeClient(options).open(address, callTo("echo", "hi"), sink);
  const error = await sink.over;
  return error ? `${error.code}: ${error.message}` : sink.text;
}

const distrust = (why: string | RegExp) =>
  expect.stringMatching(new RegExp(`^peer_authentication_failed: .*${typeof why === "string" ? why : why.source}`));

describe("shared secret", () => {
  test("the same secret on both sides lets calls through; anything else is one typed error", async () => {
    const guarded = await makeServer({ sharedSecret: secret });
    const open = await makeServer();
    expect(await call(guarded.address, { sharedSecret: secret })).toBe("hi");
    expect(await call(guarded.address, { sharedSecret: `${secret}!` })).toEqual(distrust("different shared secrets"));
    expect(await call(guarded.address)).toEqual(distrust("the worker has a shared secret and the caller has none"));
    expect(await call(open.address, { sharedSecret: secret })).toEqual(
      distrust("the caller has a shared secret and the worker has none"),
    );
    expect(guarded.activeCalls + open.activeCalls).toBe(0);
  });

  test("while a failed attempt rests, calls hear the same reason at once", async () => {
    const guarded = await makeServer({ sharedSecret: secret });
    const wrong = makeClient({ sharedSecret: "another secret, also long" });
    const errors: string[] = [];
    while (errors.length < 50 && !errors.at(-1)?.includes("next one in")) {
      const sink = new RecordingSink();
      wrong.open(guarded.address, callTo("echo"), sink);
      const error = await sink.over;
      expect(error).toMatchObject({ code: "peer_authentication_failed" });
      errors.push(error!.message);
    }
    expect(errors.at(-1)).toContain("next one in");
  });

  test("too short a secret is refused by name", () => {
    for (const make of [
      () => new TcpRequestPlaneServer({ sharedSecret: "short" }),
      () => new TcpRequestPlaneClient({ sharedSecret: "" }),
    ]) {
      expect(make).toThrow(expect.objectContaining({ code: "invalid_value", param: "sharedSecret" }));
    }
  });

  test("a stranger gets no proof to try secrets on, and no call through before it has proven itself", async () => {
    const guarded = await makeServer({ sharedSecret: secret });
    let calls = 0;
    guarded.handle("count", async () => {
      calls++;
    });
    const greeting = frame(FrameType.hello, 0, encodeHello(defaultLimits, new Uint8Array(NONCE_BYTES), true));
    const open = frame(FrameType.open, 1, openPayload("count"));
    for (const bytes of [
      Buffer.concat([greeting, open]),
      Buffer.concat([hello, open]),
      Buffer.concat([greeting, frame(FrameType.proof, 0, new Uint8Array(32)), open]),
      Buffer.concat([greeting, frame(FrameType.proof, 0, new Uint8Array(0))]),
      Buffer.concat([greeting, frame(FrameType.part, 1, new Uint8Array(100))]),
      Buffer.concat([frame(FrameType.proof, 0, new Uint8Array(32)), greeting]),
      greeting,
    ]) {
      const { socket, frames, closed } = await rawSocket(guarded.address, toClose);
      socket.write(bytes);
      if (bytes === greeting) socket.end();
      await closed;
      expect(frames.map(([type]) => type).filter((type) => type === FrameType.proof)).toEqual([]);
    }
    expect(calls).toBe(0);
    expect(guarded.activeCalls).toBe(0);
  });

  test("a proof cannot be sent back to its maker, nor used on another connection", () => {
    const hellos = (): [Handshake, Handshake] => [
      new Handshake("client", defaultLimits, secret),
      new Handshake("server", defaultLimits, secret),
    ];
    const [first, server1] = hellos();
    server1.receive(FrameType.hello, first.ourHello);
    const proof = first.receive(FrameType.hello, server1.ourHello)!;
    expect(() => first.receive(FrameType.proof, proof)).toThrow(/different shared secrets/);
    const [, server2] = hellos();
    server2.receive(FrameType.hello, first.ourHello);
    expect(() => server2.receive(FrameType.proof, proof)).toThrow(/different shared secrets/);
    expect(server2.result).toBeUndefined();
    const answer = server1.receive(FrameType.proof, proof)!;
    expect(server1.result).toMatchObject({ hasSecret: true });
    const [third] = hellos();
    third.receive(FrameType.hello, server1.ourHello);
    expect(() => third.receive(FrameType.proof, answer)).toThrow(/different shared secrets/);
  });

  test("limits that are changed on the way break the proof", () => {
    const caller = new Handshake("client", defaultLimits, secret);
    const worker = new Handshake("server", defaultLimits, secret);
    const changed = new Uint8Array(caller.ourHello);
    changed[20]! ^= 1;
    worker.receive(FrameType.hello, changed);
    const proof = caller.receive(FrameType.hello, worker.ourHello)!;
    expect(() => worker.receive(FrameType.proof, proof)).toThrow(/different shared secrets/);
  });

  test("a server that pretends is refused, whatever it says", async () => {
    const greeting = frame(FrameType.hello, 0, encodeHello(defaultLimits, new Uint8Array(NONCE_BYTES), true));
    const accept = frame(FrameType.accept, 1, Buffer.alloc(4));
    for (const bytes of [hello, Buffer.concat([greeting, frame(FrameType.proof, 0, new Uint8Array(32))])]) {
      const address = await rawServer((socket) => socket.write(bytes), toClose);
      expect(await call(address, { sharedSecret: secret })).toEqual(distrust(""));
    }
    const address = await rawServer((socket) => socket.write(Buffer.concat([greeting, accept])), toClose);
    expect(await call(address, { sharedSecret: secret })).toMatch(/^worker_unreachable.*before it has proven itself/);
    // One that repeats what the client says.
    const mirror = await rawServer((socket) => socket.pipe(socket), toClose);
    expect(await call(mirror, { sharedSecret: secret })).toEqual(distrust("different"));
  });
});

describe("TLS", () => {
  test("a certificate that the client's authority signed for the host is good, by address and by name", async () => {
    const guarded = await makeServer({ tls: server });
    expect(await call(guarded.address, { tls: { ca } })).toBe("hi");
    const byName = `tcp://localhost:${targetOf(guarded.address).port}`;
    expect(await call(byName, { tls: { ca } })).toBe("hi");
    expect(await call(guarded.address, { tls: { ca, serverName: "worker.test" } })).toBe("hi");
  });

  test("another name or another authority is a typed error that says so", async () => {
    const guarded = await makeServer({ tls: server });
    expect(await call(guarded.address, { tls: { ca, serverName: "other.test" } })).toEqual(distrust("altnames"));
    expect(await call(guarded.address, { tls: {} })).toEqual(distrust("CERT|SIGNATURE|ISSUER"));
    const foreign = await makeServer({ tls: stranger });
    expect(await call(foreign.address, { tls: { ca } })).toEqual(distrust("CERT|SIGNATURE|ISSUER"));
  });

  test("mutual: a client needs a certificate that the server's authority signed", async () => {
    const guarded = await makeServer({ tls: { ...server, ca, requireClientCertificate: true } });
    expect(await call(guarded.address, { tls: { ca, ...client } })).toBe("hi");
    expect(await call(guarded.address, { tls: { ca } })).toEqual(distrust("wants a certificate"));
    expect(await call(guarded.address, { tls: { ca, ...stranger } })).toEqual(distrust("does not accept"));
    expect(guarded.activeCalls).toBe(0);
  });

  test("together with a secret both count", async () => {
    const guarded = await makeServer({ tls: server, sharedSecret: secret });
    expect(await call(guarded.address, { tls: { ca }, sharedSecret: secret })).toBe("hi");
    expect(await call(guarded.address, { tls: { ca } })).toEqual(distrust("caller has none"));
  });

  test("only one side with TLS is an error, not a hang", async () => {
    const [plain, guarded] = [await makeServer(), await makeServer({ tls: server })];
    expect(await call(plain.address, { tls: { ca } })).toEqual(distrust("does not speak TLS"));
    expect(await call(guarded.address)).toMatch(/^(worker_unreachable|protocol_error)/);
  });

  test("a connection that does not finish its handshake is closed in time, by either side", async () => {
    const guarded = await makeServer({ tls: server, handshakeTimeoutMs: 60, tickMs: 10 });
    const { closed } = await rawSocket(guarded.address, toClose);
    await closed;
    const silent = await rawServer(() => {}, toClose);
    expect(await call(silent, { tls: { ca }, connectTimeoutMs: 60, tickMs: 10 })).toMatch(/^worker_unreachable/);
  });

  test("incomplete options are refused at construction", () => {
    expect(() => new TcpRequestPlaneServer({ tls: { cert: server.cert } })).toThrow(/tls\.key is missing/);
    expect(() => new TcpRequestPlaneClient({ tls: { key: server.key } })).toThrow(/tls\.cert is missing/);
  });
});

test("strangers take up a bounded number of sockets, and none from those who have proven themselves", async () => {
  for (const tls of [undefined, server]) {
    const guarded = await makeServer({ ...(tls ? { tls } : {}), sharedSecret: secret, maxStrangers: 4, tickMs: 10 });
    const options = { ...(tls ? { tls: { ca } } : {}), sharedSecret: secret };
    const known = [makeClient(options), makeClient(options), makeClient(options), makeClient(options)];
    const ask = async (who: TcpRequestPlaneClient): Promise<unknown> => {
      const sink = new RecordingSink();
      who.open(guarded.address, callTo("echo"), sink);
      return sink.over;
    };
    for (const who of known) expect(await ask(who)).toBeUndefined();
    let closed = 0;
    for (let i = 0; i < 10; i++) {
      const socket = connect(targetOf(guarded.address));
      toClose.push(() => socket.destroy());
      socket.on("error", () => {});
      socket.on("close", () => closed++);
      socket.resume();
      await new Promise<void>((resolve) => {
        socket.once("connect", resolve);
        socket.once("close", resolve);
      });
    }
    await until(() => closed >= 6, "the strangers over the limit are closed");
    for (const who of known) expect(await ask(who)).toBeUndefined();
  }
});

const hasIPv6 = Object.values(networkInterfaces()).some((list) => list?.some((it) => it.address === "::1"));

test.skipIf(!hasIPv6)("IPv6, dual stack and an advertised host", async () => {
  const v6 = await makeServer({ host: "::1" });
  expect(v6.address).toMatch(/^tcp:\/\/\[::1\]:\d+$/);
  expect(await call(v6.address)).toBe("hi");
  const both = await makeServer({ host: "::", advertiseHost: "localhost" });
  const { port } = targetOf(both.address);
  expect(both.address).toBe(`tcp://localhost:${port}`);
  for (const host of ["localhost", "127.0.0.1", "[::1]"]) expect(await call(`tcp://${host}:${port}`)).toBe("hi");
  const anywhere = await makeServer({ host: "0.0.0.0" });
  expect(await call(anywhere.address)).toBe("hi");
  expect(await call("tcp://[fe80::1%lo]:80")).toMatch(/^worker_unreachable: .*zone/);
  expect(() => new TcpRequestPlaneServer({ host: "fe80::1%lo" })).toThrow(/host .*zone/);
  expect(() => new TcpRequestPlaneServer({ advertiseHost: "[::1]" })).toThrow(/advertiseHost/);
});

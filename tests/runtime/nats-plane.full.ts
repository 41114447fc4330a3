import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { connect as connectNats } from "@nats-io/transport-node";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { LinkCut } from "../../src/runtime/request-plane/connection/link-cut.ts";
import { FrameType } from "../../src/runtime/request-plane/frames/frames.ts";
import { largeMessageContract } from "../../src/runtime/request-plane/large-messages.contract.ts";
import { defaultLimits } from "../../src/runtime/request-plane/limits.ts";
import { type NatsClientOptions, NatsRequestPlaneClient } from "../../src/runtime/request-plane/nats/client.ts";
import { NatsRequestPlaneServer, type NatsServerOptions } from "../../src/runtime/request-plane/nats/server.ts";
import { callTo, planeContract, RecordingSink, until } from "../../src/runtime/request-plane/plane.contract.ts";
import { frame, helloPayload, openPayload } from "../../src/runtime/request-plane/tcp/raw-peer.contract.ts";
import { ca, client as caller, server as certificate } from "../../src/runtime/security/test-certificates.contract.ts";
import { type RealServer, startNats } from "../harness/real-servers.ts";
import { temporaryFolder } from "../harness/stator-process.ts";

let nats: RealServer;
const sharedSecret = "a secret of the contract";
beforeAll(async () => {
  nats = await startNats();
});
afterAll(() => nats.stop());

const plane = (more: { sharedSecret?: string } = {}) => ({
  makeClient: (limits?: NatsClientOptions["limits"]) =>
    new NatsRequestPlaneClient({ nats: { servers: nats.url }, ...more, ...(limits ? { limits } : {}) }),
  makeServer: (limits?: NatsServerOptions["limits"]) =>
    new NatsRequestPlaneServer({ nats: { servers: nats.url }, ...more, ...(limits ? { limits } : {}) }),
  deadAddress: async () => "nats://nobody",
});

planeContract("the nats plane", plane());
largeMessageContract("the nats plane", plane());
planeContract("the nats plane with a secret", plane({ sharedSecret }));

describe("faults of NATS", () => {
  const toClose: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of toClose.splice(0).reverse()) await close();
  });

  async function ownNats(args: readonly string[] = []): Promise<RealServer> {
    const server = await startNats({ args });
    toClose.push(() => server.stop());
    return server;
  }

  async function makeServer(options: NatsServerOptions): Promise<NatsRequestPlaneServer> {
    const server = new NatsRequestPlaneServer(options);
    server.handle("echo", async (call) => {
      call.send(call.body);
    });
    server.handle("hang", (call) => {
      call.accept(0);
      return new Promise((_, reject) =>
        call.signal.addEventListener("abort", () => reject(call.signal.reason), { once: true }),
      );
    });
    toClose.push(() => server.close());
    await server.listen();
    return server;
  }

  function makeClient(options: NatsClientOptions): NatsRequestPlaneClient {
    const client = new NatsRequestPlaneClient(options);
    toClose.push(() => client.close());
    return client;
  }

  function run(client: NatsRequestPlaneClient, address: string, endpoint = "echo", body = "x"): RecordingSink {
    const sink = new RecordingSink();
    client.open(address, callTo(endpoint, body), sink);
    return sink;
  }

  test("a cut link holds what is sent, in both directions; cut for long, the client gives it up and comes back", async () => {
    const cut = new LinkCut();
    const at = { servers: nats.url };
    const server = await makeServer({ nats: at, wrapLink: cut.wrap });
    const whole = await makeServer({ nats: at });
    const heartbeat = { pingIntervalMs: 500, deadAfterMs: 2_000 };
    const client = makeClient({ nats: at, heartbeat, tickMs: 10, connectTimeoutMs: 500 });
    expect(await run(client, server.address).over).toBeUndefined();
    cut.cut();
    const held = run(client, server.address, "echo", "held");
    const hanging = run(client, server.address, "hang");
    for (let i = 0; i < 20; i++) expect(await run(client, whole.address).over).toBeUndefined(); // long enough to pass
    expect({ events: held.events, calls: server.activeCalls }).toEqual({ events: [], calls: 0 });
    cut.mend();
    expect(await held.over).toBeUndefined();
    expect(held.text).toBe("held");
    await hanging.accepted;
    cut.cut();
    expect(await hanging.over).toMatchObject({ code: "worker_lost" });
    expect(await run(client, server.address).over).toMatchObject({ code: "worker_unreachable" });
    cut.mend();
    await until(() => server.activeCalls === 0, "the server hears that the client has left");
    let again = run(client, server.address);
    while ((await again.over) !== undefined) again = run(client, server.address); // until its back-off is over
    expect(again.text).toBe("x");
  });

  /** Calls until one succeeds. */
  async function untilServed(client: NatsRequestPlaneClient, address: string): Promise<void> {
    const end = performance.now() + 20_000;
    let error = await run(client, address).over;
    while (error) {
      expect(["worker_unreachable", "worker_lost"]).toContain(error.code);
      if (performance.now() > end) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
      error = await run(client, address).over;
    }
  }

  test("NATS restarts: open streams end at once, calls fail at once meanwhile, and all works again by itself", async () => {
    const own = await ownNats();
    const options = { nats: { servers: own.url } };
    const server = await makeServer(options);
    const client = makeClient(options);
    for (let round = 0; round < 3; round++) {
      const hanging = Array.from({ length: 20 }, () => run(client, server.address, "hang"));
      await Promise.all(hanging.map((sink) => sink.accepted));
      await own.kill();
      for (const sink of hanging) expect(await sink.over).toMatchObject({ code: "worker_lost" });
      await until(() => server.activeCalls === 0, "the server's calls are aborted");
      expect(await run(client, server.address).over).toMatchObject({ code: "worker_unreachable" });
      await own.restart();
      await untilServed(client, server.address);
    }
  });

  test("NATS is not there at first: a typed error, and the first call after it came is served", async () => {
    const own = await ownNats();
    const options = { nats: { servers: own.url } };
    const server = await makeServer(options);
    await own.kill();
    const client = makeClient(options);
    expect(await run(client, server.address).over).toMatchObject({
      code: "worker_unreachable",
      message: expect.stringContaining("NATS"),
    });
    const late = new NatsRequestPlaneServer(options);
    toClose.push(() => late.close());
    await expect(late.listen()).rejects.toMatchObject({ code: "worker_unreachable" });
    await own.restart();
    await untilServed(client, server.address);
  });

  test("NATS that stops answering: streams end in heartbeat time, and come back when it goes on", async () => {
    const own = await ownNats();
    const options = { nats: { servers: own.url }, heartbeat: { pingIntervalMs: 100, deadAfterMs: 400 }, tickMs: 10 };
    const server = await makeServer(options);
    const client = makeClient({ ...options, connectTimeoutMs: 300 });
    const hanging = run(client, server.address, "hang");
    await hanging.accepted;
    own.signal("SIGSTOP");
    expect(await hanging.over).toMatchObject({ code: "worker_lost" });
    expect(await run(client, server.address).over).toMatchObject({ code: "worker_unreachable" });
    own.signal("SIGCONT");
    await untilServed(client, server.address);
  });

  test("a worker that is killed: its streams end in heartbeat time, then it is unreachable at once", async () => {
    const script = `
      import { NatsRequestPlaneServer } from "${new URL("../../dist/runtime/index.js", import.meta.url).href}";
      const server = new NatsRequestPlaneServer({ nats: { servers: "${nats.url}" }, serverId: "victim" });
      server.handle("hang", (call) => { call.accept(0); return new Promise(() => {}); });
      await server.listen();
      console.log("ready");`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    toClose.push(() => child.kill("SIGKILL"));
    await new Promise((resolve, reject) => {
      child.stdout.once("data", resolve);
      child.once("exit", (code) => reject(new Error(`the worker ended with ${code}`)));
    });
    const client = makeClient({
      nats: { servers: nats.url },
      heartbeat: { pingIntervalMs: 100, deadAfterMs: 300 },
      connectTimeoutMs: 1000,
      tickMs: 10,
    });
    const hanging = run(client, "nats://victim", "hang");
    await hanging.accepted;
    child.kill("SIGKILL");
    expect(await hanging.over).toMatchObject({ code: "worker_lost" });
    let after = "";
    for (let end = performance.now() + 10_000; !after.includes("nobody listens") && performance.now() < end; ) {
      const error = await run(client, "nats://victim").over;
      expect(error).toMatchObject({ code: "worker_unreachable" });
      after = error!.message;
    }
    expect(after).toContain("nobody listens");
  });

  test("a small max_payload of NATS costs messages, not calls", async () => {
    const file = join(temporaryFolder(), "nats.conf");
    writeFileSync(file, "max_payload: 4096\n");
    const own = await ownNats(["-c", file]);
    const options = { nats: { servers: own.url } };
    const server = await makeServer(options);
    const body = "y".repeat(5_000_000);
    const sink = run(makeClient(options), server.address, "echo", body);
    expect(await sink.over).toBeUndefined();
    expect(sink.text === body).toBe(true);
  });

  test("user and password, or a token; without them a typed error that says so", async () => {
    for (const [args, good] of [
      [["--user", "u", "--pass", "p"], { user: "u", password: "p" }],
      [["--auth", "t0ken"], { token: "t0ken" }],
    ] as const) {
      const own = await ownNats(args);
      const server = await makeServer({ nats: { servers: own.url, ...good } });
      expect(await run(makeClient({ nats: { servers: own.url, ...good } }), server.address).over).toBeUndefined();
      const refused = makeClient({ nats: { servers: own.url } });
      expect(await run(refused, server.address).over).toMatchObject({
        code: "peer_authentication_failed",
        message: expect.stringContaining("NATS"),
      });
    }
  });

  test("TLS to NATS, with a certificate of the caller; another authority is a typed error", async () => {
    const folder = temporaryFolder();
    const file = (name: string, text: string): string => {
      writeFileSync(join(folder, name), text);
      return join(folder, name);
    };
    const own = await ownNats([
      "--tlsverify",
      ...["--tlscacert", file("ca.pem", ca)],
      ...["--tlscert", file("cert.pem", certificate.cert)],
      ...["--tlskey", file("key.pem", certificate.key)],
    ]);
    const options = { nats: { servers: own.url, tls: { ca, ...caller } } };
    const server = await makeServer(options);
    expect(await run(makeClient(options), server.address).over).toBeUndefined();
    for (const tls of [{ ca }, { ...caller }]) {
      const error = await run(makeClient({ nats: { servers: own.url, tls } }), server.address).over;
      expect(error?.code).toMatch(/^(peer_authentication_failed|worker_unreachable)$/);
    }
    expect(() => new NatsRequestPlaneClient({ nats: { servers: own.url, tls: { cert: caller.cert } } })).toThrow(
      /nats\.tls\.key is missing/,
    );
  });

  test("one shared secret over NATS; another one, or none, is refused", async () => {
    const options = { nats: { servers: nats.url } };
    const server = await makeServer({ ...options, sharedSecret });
    expect(await run(makeClient({ ...options, sharedSecret }), server.address).over).toBeUndefined();
    for (const other of [{}, { sharedSecret: "another secret, also long" }]) {
      expect(await run(makeClient({ ...options, ...other }), server.address).over).toMatchObject({
        code: "peer_authentication_failed",
      });
    }
  });

  test("two systems on one NATS do not meet", async () => {
    const server = await makeServer({ nats: { servers: nats.url, subjectPrefix: "one" } });
    const same = makeClient({ nats: { servers: nats.url, subjectPrefix: "one" } });
    expect(await run(same, server.address).over).toBeUndefined();
    const other = makeClient({ nats: { servers: nats.url, subjectPrefix: "two" } });
    expect(await run(other, server.address).over).toMatchObject({ code: "worker_unreachable" });
  });

  test("strangers that say syn take up a bounded number of places, for a bounded time", async () => {
    const server = await makeServer({
      nats: { servers: nats.url },
      maxStrangers: 3,
      handshakeTimeoutMs: 300,
      tickMs: 10,
    });
    const stranger = await connectNats({ servers: nats.url });
    toClose.push(() => stranger.close());
    const answers: number[] = [];
    stranger.subscribe("stator.link.*", {
      callback: (_error, message) => {
        answers.push(message.data[0]!);
      },
    });
    for (let i = 0; i < 10; i++) {
      const syn = Uint8Array.of(1, 0, 0, 0, 0);
      stranger.publish(`stator.rpc.${server.address.slice(7)}`, syn, { reply: `stator.link.strange-${i}` });
    }
    await until(() => answers.filter((kind) => kind === 6).length === 10, "7 are refused, 3 given up in time");
    expect(answers.filter((kind) => kind === 2).length).toBe(3);
    expect(await run(makeClient({ nats: { servers: nats.url } }), server.address).over).toBeUndefined();
  });

  test("a peer that takes nothing costs bounded memory, then its connection; others are served meanwhile", async () => {
    const server = await makeServer({
      nats: { servers: nats.url },
      limits: { windowBytes: 1e9, maxQueuedBytes: 200_000 },
      heartbeat: { pingIntervalMs: 200, deadAfterMs: 1000 },
      tickMs: 10,
    });
    let sent = 0;
    server.handle("pour", async (call) => {
      for (;;) {
        sent += 10_000;
        if (!call.send(Buffer.alloc(10_000))) await call.ready();
      }
    });
    const stranger = await connectNats({ servers: nats.url });
    toClose.push(() => stranger.close());
    let peer: string | undefined;
    stranger.subscribe("stator.link.deaf", {
      callback: (_error, message) => {
        peer ??= message.reply;
      },
    });
    stranger.publish(`stator.rpc.${server.address.slice(7)}`, Uint8Array.of(1, 0, 0, 0, 0), {
      reply: "stator.link.deaf",
    });
    await until(() => peer !== undefined, "the server answers");
    // A greeting and two calls; nothing is ever said to have been taken.
    const greeting = frame(FrameType.hello, 0, helloPayload({ ...defaultLimits, windowBytes: 1e9 }));
    const calls = [1, 2].map((id) => frame(FrameType.open, id, openPayload("pour")));
    stranger.publish(peer!, Buffer.concat([Uint8Array.of(3, 0, 0, 0, 0), greeting, ...calls]));
    await until(() => sent > 0, "the answers flow");
    for (let i = 0; i < 20; i++) {
      expect(await run(makeClient({ nats: { servers: nats.url } }), server.address).over).toBeUndefined();
    }
    await until(() => server.activeCalls === 0, "the connection is given up");
    expect(sent).toBeLessThan(1_000_000);
  });

  test("messages that were lost on the way end the link instead of the order", async () => {
    const server = await makeServer({ nats: { servers: nats.url } });
    const stranger = await connectNats({ servers: nats.url });
    toClose.push(() => stranger.close());
    let peer: string | undefined;
    const heard: number[] = [];
    stranger.subscribe("stator.link.gap", {
      callback: (_error, message) => {
        heard.push(message.data[0]!);
        peer ??= message.reply;
      },
    });
    stranger.publish(`stator.rpc.${server.address.slice(7)}`, Uint8Array.of(1, 0, 0, 0, 0), {
      reply: "stator.link.gap",
    });
    await until(() => peer !== undefined, "the server answers");
    stranger.publish(peer!, Uint8Array.of(3, 1, 0, 0, 0, 7)); // number 0 is missing
    await until(() => heard.includes(6), "the link is given up");
  });

  test("a stranger cannot make a worker write to subjects of others, nor lie about what it took", async () => {
    const server = await makeServer({ nats: { servers: nats.url } });
    const subject = `stator.rpc.${server.address.slice(7)}`;
    const stranger = await connectNats({ servers: nats.url });
    toClose.push(() => stranger.close());
    const heard: [string, number][] = [];
    let peer: string | undefined;
    for (const name of ["orders.new", "stator.link.liar"]) {
      stranger.subscribe(name, {
        callback: (_error, { data, reply }) => {
          heard.push([name, data[0]!]);
          peer ??= reply;
        },
      });
    }
    const syn = Uint8Array.of(1, 0, 0, 0, 0);
    for (const reply of ["orders.new", "stator.link.liar"]) stranger.publish(subject, syn, { reply });
    await until(() => peer !== undefined, "the server answers");
    stranger.publish(peer!, Uint8Array.of(4, 0xff, 0xff, 0xff, 0x7f));
    await until(() => heard.some(([, kind]) => kind === 6), "the link is given up");
    expect(heard.every(([name]) => name === "stator.link.liar")).toBe(true);
  });
});

import { afterEach, describe, expect, test } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { callUnary } from "./call-unary.ts";
import type { RequestPlaneLimits } from "./limits.ts";
import type {
  CallHandler,
  ClientStream,
  IncomingCall,
  OutgoingCall,
  RequestPlaneClient,
  RequestPlaneServer,
  StreamSink,
} from "./plane.ts";

export interface PlaneUnderTest {
  makeClient(limits?: Partial<RequestPlaneLimits>): RequestPlaneClient;
  makeServer(limits?: Partial<RequestPlaneLimits>): RequestPlaneServer;
  /** An address where nobody listens. */
  deadAddress(): Promise<string>;
}

/** What a sink heard, and promises for its milestones. */
export class RecordingSink implements StreamSink {
  readonly events: string[] = [];
  readonly messages: Buffer[] = [];
  acceptedAt: number | undefined;
  error: StatorError | undefined;
  onMessage: ((message: Uint8Array) => void) | undefined;
  readonly accepted: Promise<number>;
  readonly over: Promise<StatorError | undefined>;
  #resolveAccepted!: (position: number) => void;
  #resolveOver!: (error: StatorError | undefined) => void;

  constructor() {
    this.accepted = new Promise((resolve) => {
      this.#resolveAccepted = resolve;
    });
    this.over = new Promise((resolve) => {
      this.#resolveOver = resolve;
    });
  }

  onAccept(queuePosition: number): void {
    this.events.push(`accept ${queuePosition}`);
    this.#resolveAccepted(queuePosition);
  }

  onData(message: Uint8Array): void {
    this.events.push("data");
    this.messages.push(Buffer.from(message));
    this.onMessage?.(message);
  }

  onEnd(): void {
    this.events.push("end");
    this.#resolveOver(undefined);
  }

  onError(error: StatorError): void {
    this.events.push(`error ${error.code}`);
    this.error = error;
    this.#resolveOver(error);
  }

  get text(): string {
    return Buffer.concat(this.messages).toString();
  }
}

export function callTo(endpoint: string, body: string | Uint8Array = "", timeoutMs = 10_000): OutgoingCall {
  return { endpoint, requestId: "r1", body: typeof body === "string" ? Buffer.from(body) : body, timeoutMs };
}

export async function until(condition: () => boolean, what: string, timeoutMs = 10_000): Promise<void> {
  const end = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`waited ${timeoutMs} ms in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

const aborted = (call: IncomingCall): Promise<never> =>
  new Promise((_, reject) => {
    call.signal.addEventListener("abort", () => reject(call.signal.reason), { once: true });
    if (call.signal.aborted) reject(call.signal.reason);
  });

/** The rules of plane.ts, for any implementation. */
export function planeContract(name: string, plane: PlaneUnderTest): void {
  const toClose: { close(): Promise<void> }[] = [];
  afterEach(async () => {
    await Promise.all(toClose.splice(0).map((item) => item.close()));
  });

  async function start(
    handlers: Record<string, CallHandler>,
    limits?: Partial<RequestPlaneLimits>,
    clientLimits = limits,
  ): Promise<{ client: RequestPlaneClient; server: RequestPlaneServer }> {
    const server = plane.makeServer(limits);
    for (const [endpoint, handler] of Object.entries(handlers)) server.handle(endpoint, handler);
    await Promise.all([server.listen(), server.listen()]);
    await server.listen();
    const client = plane.makeClient(clientLimits);
    toClose.push(client, server);
    return { client, server };
  }

  function run(
    client: RequestPlaneClient,
    address: string,
    call: OutgoingCall,
  ): { sink: RecordingSink; stream: ClientStream } {
    const sink = new RecordingSink();
    return { sink, stream: client.open(address, call, sink) };
  }

  const echo: CallHandler = async (call) => {
    call.accept(0);
    call.send(call.body);
  };

  describe(name, () => {
    test("a call carries everything there, and messages back in order", async () => {
      let seen: IncomingCall | undefined;
      const { client, server } = await start({
        talk: async (call) => {
          seen = call;
          call.accept(3);
          for (const word of ["one ", "", "two ", "three"]) call.send(Buffer.from(word));
        },
      });
      const sink = new RecordingSink();
      client.open(
        server.address,
        { ...callTo("talk", "héllo", 7000), traceparent: "00-1-2-01", requestId: "äb" },
        sink,
      );
      expect(sink.events).toEqual([]);
      expect(await sink.over).toBeUndefined();
      expect(sink.events).toEqual(["accept 3", "data", "data", "data", "data", "end"]);
      expect(sink.messages.map(String)).toEqual(["one ", "", "two ", "three"]);
      expect(seen).toMatchObject({ endpoint: "talk", requestId: "äb", traceparent: "00-1-2-01" });
      expect(Buffer.from(seen!.body).toString()).toBe("héllo");
      expect(seen!.timeoutMs).toBeGreaterThan(5000);
      expect(seen!.timeoutMs).toBeLessThanOrEqual(7000);
      await until(() => server.activeCalls === 0, "no active calls");
    });

    test("an unknown endpoint of this instance is a protocol error, one of another instance is not here any more", async () => {
      const { client, server } = await start({ "c/talk@e2": echo, "c/more@e2": echo });
      const codes: Record<string, unknown> = {};
      for (const endpoint of ["c/talk@e2", "c/walk@e2", "c/talk@e1", "walk"]) {
        codes[endpoint] = (await run(client, server.address, callTo(endpoint)).sink.over)?.code;
      }
      expect(codes).toEqual({
        "c/talk@e2": undefined,
        "c/walk@e2": "protocol_error",
        "c/talk@e1": "worker_unreachable",
        walk: "protocol_error",
      });
    });

    test("a refusal, a typed failure and an unknown throw each arrive as one error", async () => {
      const { client, server } = await start({
        refuse: () => Promise.reject(new StatorError("overloaded", "full", { retryAfterSeconds: 2, param: "p" })),
        fail: async (call) => {
          call.send(Buffer.from("x"));
          throw new StatorError("engine_error", "broke");
        },
        crash: async (call) => {
          call.accept(0);
          throw new TypeError("secret detail");
        },
        crashAtOnce: () => {
          throw new Error("secret");
        },
      });
      const refused = run(client, server.address, callTo("refuse")).sink;
      expect(await refused.over).toMatchObject({ code: "overloaded", retryAfterSeconds: 2, param: "p" });
      expect(refused.events).toEqual(["error overloaded"]);
      const failed = run(client, server.address, callTo("fail")).sink;
      await failed.over;
      expect(failed.events).toEqual(["accept 0", "data", "error engine_error"]);
      for (const endpoint of ["crash", "crashAtOnce"]) {
        const error = await run(client, server.address, callTo(endpoint)).sink.over;
        expect(error).toMatchObject({ code: "internal_error", id: expect.stringMatching(/^err-/) });
        expect(error!.message).not.toContain("secret");
      }
      const unknown = run(client, server.address, callTo("nowhere")).sink;
      expect(await unknown.over).toMatchObject({ code: "protocol_error" });
      await until(() => server.activeCalls === 0, "no active calls");
    });

    test("many calls at once do not mix", async () => {
      const { client, server } = await start({
        repeat: async (call) => {
          for (let i = 0; i < 20; i++) {
            if (!call.send(call.body)) await call.ready();
            if (i % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
          }
        },
      });
      const sinks = Array.from({ length: 300 }, (_, i) => run(client, server.address, callTo("repeat", `<${i}>`)).sink);
      await Promise.all(sinks.map((sink) => sink.over));
      for (const [i, sink] of sinks.entries()) expect(sink.text).toBe(`<${i}>`.repeat(20));
    });

    test("credit: a consumer that takes nothing stops its own stream only, and costs no more than its window", async () => {
      const window = 16 * 1024;
      let sent = 0;
      const message = Buffer.alloc(1000, 1);
      const { client, server } = await start(
        {
          pour: async (call) => {
            for (let i = 0; i < 500; i++) {
              sent++;
              if (!call.send(message)) await call.ready();
            }
          },
          echo,
        },
        { windowBytes: window },
      );
      const { sink, stream } = run(client, server.address, callTo("pour"));
      await until(() => sink.messages.length >= 16, "the window is used up");
      for (let i = 0; i < 20; i++)
        expect(await run(client, server.address, callTo("echo", "x")).sink.over).toBeUndefined();
      expect(sent).toBeLessThanOrEqual(window / 1000 + 1);
      expect(sink.messages.length).toBe(sent);
      sink.onMessage = (bytes) => stream.consumed(bytes.length);
      stream.consumed(sink.messages.length * 1000);
      expect(await sink.over).toBeUndefined();
      expect(sink.messages.length).toBe(500);
    });

    test("a handler that ignores the credit is stopped", async () => {
      const { client, server } = await start(
        {
          flood: async (call) => {
            for (;;) call.send(Buffer.alloc(1024));
          },
        },
        { windowBytes: 4096, maxDataBytes: 8192 },
      );
      expect(await run(client, server.address, callTo("flood")).sink.over).toMatchObject({ code: "internal_error" });
    });

    test("limits: a body and a message over the limit are refused by name and size", async () => {
      const limits = { maxOpenBytes: 10_000, maxDataBytes: 5000 };
      const { client, server } = await start({ echo }, limits);
      const fits = run(client, server.address, callTo("echo", Buffer.alloc(5000, 7))).sink;
      expect(await fits.over).toBeUndefined();
      expect(fits.messages[0]).toEqual(Buffer.alloc(5000, 7));
      const tooLong = await run(client, server.address, callTo("echo", Buffer.alloc(10_001))).sink.over;
      expect(tooLong).toMatchObject({ code: "payload_too_large", message: expect.stringMatching(/10001 .*10000/) });
      const answer = await run(client, server.address, callTo("echo", Buffer.alloc(5001))).sink.over;
      expect(answer).toMatchObject({ code: "payload_too_large", message: expect.stringMatching(/5001 .*5000/) });
      expect(await run(client, server.address, callTo("echo", "still fine")).sink.over).toBeUndefined();
    });

    test("of two different limits the smaller one counts, whichever side has it", async () => {
      const small = { windowBytes: 4096, maxDataBytes: 5000 };
      const large = { windowBytes: 256 * 1024, maxDataBytes: 100_000 };
      for (const [serverLimits, clientLimits] of [
        [small, large],
        [large, small],
      ] as const) {
        let sent = 0;
        const pour: CallHandler = async (call) => {
          for (let i = 0; i < 100; i++) {
            sent++;
            if (!call.send(Buffer.alloc(1000))) await call.ready();
          }
        };
        const { client, server } = await start({ pour, echo }, serverLimits, clientLimits);
        const { sink, stream } = run(client, server.address, callTo("pour"));
        await until(() => sink.messages.length === 5, "the small window is used up");
        const tooLong = await run(client, server.address, callTo("echo", Buffer.alloc(5001))).sink.over;
        expect(tooLong).toMatchObject({ code: "payload_too_large", message: expect.stringMatching(/5001 .*5000/) });
        expect(sent).toBe(5);
        sink.onMessage = (bytes) => stream.consumed(bytes.length);
        stream.consumed(5000);
        expect(await sink.over).toBeUndefined();
        expect(sink.messages.length).toBe(100);
      }
    });

    test("callUnary keeps what it received, however many calls follow", async () => {
      const { client, server } = await start({ echo });
      const ask = (text: string): Promise<Uint8Array> =>
        callUnary(client, server.address, callTo("echo", text), AbortSignal.timeout(10_000));
      const answers = [await ask("first"), await ask("other"), ...(await Promise.all([ask("third"), ask("4")]))];
      expect(answers.map((it) => Buffer.from(it).toString())).toEqual(["first", "other", "third", "4"]);
    });

    test("large bodies and messages arrive whole", async () => {
      const { client, server } = await start({ echo });
      const body = Buffer.alloc(3_000_000);
      for (let i = 0; i < body.length; i += 4) body.writeUInt32LE(i, i);
      const { sink } = run(client, server.address, callTo("echo", body));
      expect(await sink.over).toBeUndefined();
      expect(sink.messages[0]!.equals(body)).toBe(true);
    });

    test("stop: the handler is told and ends properly", async () => {
      let reason: unknown;
      const { client, server } = await start({
        work: async (call) => {
          call.accept(0);
          await aborted(call).catch((thrown: unknown) => {
            reason = thrown;
          });
          call.send(Buffer.from("last words"));
        },
      });
      const { sink, stream } = run(client, server.address, callTo("work"));
      await sink.accepted;
      stream.cancel("stop");
      expect(await sink.over).toBeUndefined();
      expect(sink.text).toBe("last words");
      expect(reason).toMatchObject({ code: "client_closed" });
    });

    test("kill: the sink hears client_closed at once and nothing more; the handler is told; others go on", async () => {
      let told = false;
      const { client, server } = await start({
        work: async (call) => {
          call.accept(0);
          await aborted(call).catch(() => {
            told = true;
          });
          call.send(Buffer.from("nobody hears this"));
        },
        echo,
      });
      const { sink, stream } = run(client, server.address, callTo("work"));
      await sink.accepted;
      stream.cancel("kill");
      expect(sink.events).toEqual(["accept 0", "error client_closed"]);
      stream.cancel("kill");
      stream.consumed(5);
      await until(() => told && server.activeCalls === 0, "the handler has ended");
      expect(await run(client, server.address, callTo("echo")).sink.over).toBeUndefined();
      expect(sink.events).toEqual(["accept 0", "error client_closed"]);
    });

    test("cancelled right after the open: one client_closed, and nothing stays behind", async () => {
      const { client, server } = await start({ work: (call) => aborted(call), echo });
      for (const kind of ["stop", "kill"] as const) {
        const { sink, stream } = run(client, server.address, callTo("work"));
        stream.cancel(kind);
        expect(await sink.over).toMatchObject({ code: "client_closed" });
        expect(sink.events).toEqual(["error client_closed"]);
      }
      expect(await run(client, server.address, callTo("echo")).sink.over).toBeUndefined();
      await until(() => server.activeCalls === 0, "no active calls");
    });

    test("the deadline ends a call on both sides, accepted or not, waiting for credit or not", async () => {
      const reasons: unknown[] = [];
      const { client, server } = await start(
        {
          silent: (call) =>
            aborted(call).catch((thrown: unknown) => {
              reasons.push(thrown);
              throw thrown;
            }),
          stuck: async (call) => {
            call.send(Buffer.alloc(5000));
            await call.ready().catch((thrown: unknown) => {
              reasons.push(thrown);
              throw thrown;
            });
          },
          deaf: () => new Promise((resolve) => setTimeout(resolve, 1500)),
        },
        { windowBytes: 4096 },
      );
      const began = performance.now();
      const sinks = ["silent", "stuck", "deaf"].map((it) => run(client, server.address, callTo(it, "", 300)).sink);
      for (const sink of sinks) expect(await sink.over).toMatchObject({ code: "deadline_exceeded" });
      expect(performance.now() - began).toBeGreaterThanOrEqual(295);
      expect(performance.now() - began).toBeLessThan(1400);
      await until(() => server.activeCalls === 0, "no active calls");
      expect(reasons.length).toBe(2);
    });

    test("a server that closes: accepted streams are lost, the others unreachable; handlers are aborted", async () => {
      let abortedCalls = 0;
      const wait: CallHandler = (call) =>
        aborted(call).catch((thrown: unknown) => {
          abortedCalls++;
          throw thrown;
        });
      const { client, server } = await start({
        accepted: (call) => {
          call.accept(0);
          return wait(call);
        },
        waiting: wait,
      });
      const first = run(client, server.address, callTo("accepted")).sink;
      const second = run(client, server.address, callTo("waiting")).sink;
      await first.accepted;
      await until(() => server.activeCalls === 2, "both run");
      await server.close();
      await server.close();
      expect(await first.over).toMatchObject({ code: "worker_lost" });
      expect(await second.over).toMatchObject({ code: "worker_unreachable" });
      await until(() => abortedCalls === 2 && server.activeCalls === 0, "the handlers have ended");
      expect(await run(client, server.address, callTo("accepted")).sink.over).toMatchObject({
        code: "worker_unreachable",
      });
    });

    test("a client that closes ends its streams and its calls", async () => {
      const { client, server } = await start({
        work: (call) => {
          call.accept(0);
          return aborted(call);
        },
      });
      const running = run(client, server.address, callTo("work")).sink;
      await running.accepted;
      const fresh = run(client, server.address, callTo("work")).sink;
      await client.close();
      await client.close();
      expect(await running.over).toMatchObject({ code: "worker_lost" });
      expect(await fresh.over).toMatchObject({ code: "worker_unreachable" });
      const late = run(client, server.address, callTo("work")).sink;
      expect(late.events).toEqual([]);
      expect(await late.over).toMatchObject({ code: "worker_unreachable" });
      await until(() => server.activeCalls === 0, "the calls have ended");
    });

    test("draining: new calls are refused, running ones go on", async () => {
      let release!: () => void;
      const gate = new Promise<void>((resolve) => {
        release = resolve;
      });
      const { client, server } = await start({
        work: async (call) => {
          call.accept(0);
          await gate;
          call.send(Buffer.from("done"));
        },
      });
      const running = run(client, server.address, callTo("work")).sink;
      await running.accepted;
      server.stopAccepting();
      server.stopAccepting();
      for (let i = 0; i < 3; i++) {
        expect(await run(client, server.address, callTo("work")).sink.over).toMatchObject({ code: "draining" });
      }
      const another = plane.makeClient();
      toClose.push(another);
      expect(await run(another, server.address, callTo("work")).sink.over).toMatchObject({ code: "draining" });
      release();
      expect(await running.over).toBeUndefined();
      expect(running.text).toBe("done");
    });

    test("an address where nobody listens, or that is none, is unreachable", async () => {
      const client = plane.makeClient();
      toClose.push(client);
      for (const address of [await plane.deadAddress(), "nonsense://x", "tcp://", ""]) {
        const { sink } = run(client, address, callTo("echo"));
        expect(sink.events).toEqual([]);
        expect(await sink.over).toMatchObject({ code: "worker_unreachable" });
        expect(sink.events.length).toBe(1);
      }
    });

    test("the end of a batch follows its messages, once for all that were sent in one turn", async () => {
      let go!: () => void;
      const gate = new Promise<void>((resolve) => {
        go = resolve;
      });
      const { client, server } = await start({
        burst: async (call) => {
          call.accept(0);
          await gate;
          call.send(Buffer.from("a"));
          call.send(Buffer.from("b"));
        },
      });
      const log: string[] = [];
      const unsubscribe = client.onBatchEnd(() => log.push("batch"));
      const sinks = Array.from({ length: 50 }, () => run(client, server.address, callTo("burst")).sink);
      for (const sink of sinks) sink.onMessage = () => log.push("data");
      await Promise.all(sinks.map((sink) => sink.accepted));
      await until(() => log.includes("batch"), "the batch of the accepts");
      log.length = 0;
      go();
      await Promise.all(sinks.map((sink) => sink.over));
      await until(() => log.at(-1) === "batch", "the last batch");
      expect(log.filter((entry) => entry === "data").length).toBe(100);
      // One write = one read, unless the kernel splits it.
      expect(log.filter((entry) => entry === "batch").length).toBeLessThanOrEqual(6);
      unsubscribe();
      const before = log.length;
      await run(client, server.address, callTo("burst")).sink.over;
      await new Promise((resolve) => setImmediate(resolve));
      expect(log.slice(before).filter((entry) => entry === "batch")).toEqual([]);
    });

    test("a sink that throws costs its own stream only", async () => {
      const { client, server } = await start({
        count: async (call) => {
          for (let i = 0; i < 50; i++) {
            call.send(call.body);
            await new Promise((resolve) => setImmediate(resolve));
          }
        },
      });
      const sinks = [0, 1, 2].map((i) => run(client, server.address, callTo("count", String(i))).sink);
      sinks[1]!.onMessage = () => {
        throw new TypeError("a mistake in the sink");
      };
      expect(await sinks[1]!.over).toMatchObject({ code: "internal_error" });
      expect(await Promise.all([sinks[0]!.over, sinks[2]!.over])).toEqual([undefined, undefined]);
      expect(sinks.map((sink) => sink.messages.length)).toEqual([50, 1, 50]);
    });

    test("an endpoint has one handler", async () => {
      const { server } = await start({ echo });
      expect(() => server.handle("echo", echo)).toThrow(RangeError);
    });
  });
}

import { connect } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import {
  bytes,
  echo,
  finish,
  framesOf,
  sendDelta,
  startTestFrontend,
  type TestFrontend,
  type TestOptions,
  until,
  type WorkerScript,
} from "../test-frontend.contract.ts";

let running: TestFrontend | undefined;
const start = async (options?: TestOptions): Promise<TestFrontend> => {
  running = await startTestFrontend(options);
  return running;
};
afterEach(async () => {
  await running?.close();
  running = undefined;
});

const path = "/v1/chat/completions";
const chat = { model: "test-model", messages: [{ role: "user", content: "hello" }], max_tokens: 8 };
const streamed = { ...chat, stream: true };

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });

/** Sends some text and then waits for its end. */
const hangAfter =
  (text: string): WorkerScript =>
  async (_request, call) => {
    call.accept(0);
    if (text !== "") await sendDelta(call, { tokens: bytes(text) });
    await aborted(call.signal);
    throw call.signal.reason;
  };

async function lastError(response: Response): Promise<{ code: string; frames: string[] }> {
  const frames = framesOf(await response.text());
  expect(frames.at(-1)).toBe("[DONE]");
  return { code: JSON.parse(frames.at(-2)!).error.code, frames };
}

async function errorOf(response: Response): Promise<{ status: number; code: string; param: string | null }> {
  const { error } = (await response.json()) as { error: { code: string; param: string | null; message: string } };
  expect(error.message).toContain(`docs/errors.md#${error.code}`);
  return { status: response.status, code: error.code, param: error.param };
}

const idle = ({ router, frontend, activeCalls }: TestFrontend): boolean =>
  router.book.requests("w0") + router.book.requests("w1") + frontend.inFlight + activeCalls() === 0;

describe("a worker that refuses", () => {
  it("is left for another one", async () => {
    const tried: string[] = [];
    const test = await start({
      script: (request, call, workerId) => {
        tried.push(workerId);
        if (workerId === "w0") throw new StatorError("overloaded", "full");
        return echo(request, call, workerId);
      },
    });
    const response = await test.post(path, chat);
    expect(response.status).toBe(200);
    expect(response.headers.get("x-stator-worker-id")).toBe("w1");
    expect(tried).toEqual(["w0", "w1"]);
    await until(() => idle(test));
  });

  it("is the answer when all do: 503 with Retry-After", async () => {
    const test = await start({
      script: () => Promise.reject(new StatorError("overloaded", "full", { retryAfterSeconds: 3 })),
    });
    for (const body of [chat, streamed]) {
      const response = await test.post(path, body);
      expect(response.headers.get("retry-after")).toBe("3");
      expect(await errorOf(response)).toMatchObject({ status: 503, code: "overloaded" });
    }
    await until(() => idle(test));
  });

  it("is not left when the client named it", async () => {
    const test = await start({
      script: (request, call, workerId) =>
        workerId === "w0" ? Promise.reject(new StatorError("overloaded", "full")) : echo(request, call, workerId),
    });
    expect((await test.post(path, chat, { "x-stator-worker-id": "w0" })).status).toBe(503);
    expect((await test.post(path, chat, { "x-stator-worker-id": "w1" })).headers.get("x-stator-worker-id")).toBe("w1");
    expect(await errorOf(await test.post(path, chat, { "x-stator-worker-id": "w9" }))).toMatchObject({ status: 404 });
  });

  it("is not left for an error of the request itself, whose parameter the client learns", async () => {
    let calls = 0;
    const test = await start({
      script: () => {
        calls++;
        return Promise.reject(new StatorError("invalid_value", "bad grammar", { param: "response_format.grammar" }));
      },
    });
    expect(await errorOf(await test.post(path, streamed))).toEqual({
      status: 400,
      code: "invalid_value",
      param: "response_format.grammar",
    });
    expect(calls).toBe(1);
  });
});

describe("a stream that breaks", () => {
  it("ends with a typed error and [DONE] when the engine fails", async () => {
    const test = await start({
      script: async (_request, call) => {
        call.accept(0);
        await sendDelta(call, { tokens: bytes("abc") });
        await new Promise((resolve) => setTimeout(resolve, 20));
        throw new StatorError("engine_error", "it broke");
      },
    });
    const { code, frames } = await lastError(await test.post(path, streamed));
    expect(code).toBe("engine_error");
    expect(frames.join("")).toContain(`"content":"abc"`);
    expect(frames.join("")).not.toContain(`"finish_reason":"`);
    expect(await errorOf(await test.post(path, chat))).toMatchObject({ status: 500, code: "engine_error" });
    await until(() => idle(test));
  });

  it("never shows an abort as success", async () => {
    const test = await start({
      script: async (request, call) => {
        call.accept(0);
        await sendDelta(call, { tokens: bytes("abc"), finish: finish(request, 3, "abort") });
      },
    });
    expect(await errorOf(await test.post(path, chat))).toMatchObject({ status: 500 });
  });

  it("is a protocol error when the worker ends without a finish or sends rubbish", async () => {
    let rubbish = false;
    const test = await start({
      script: async (_request, call) => {
        call.accept(0);
        if (rubbish) call.send(new Uint8Array([255, 1, 2, 3, 4]));
      },
    });
    expect(await errorOf(await test.post(path, chat))).toMatchObject({ status: 502, code: "protocol_error" });
    rubbish = true;
    expect(await errorOf(await test.post(path, chat))).toMatchObject({ status: 502, code: "protocol_error" });
    await until(() => idle(test));
  });

  it("kills the siblings of a choice that fails", async () => {
    let calls = 0;
    const outcomes: string[] = [];
    const test = await start({
      script: async (_request, call) => {
        const failing = ++calls === 3;
        call.accept(0);
        await sendDelta(call, { tokens: bytes("abc") });
        if (failing) {
          await new Promise((resolve) => setTimeout(resolve, 20));
          throw new StatorError("engine_error", "it broke");
        }
        await aborted(call.signal);
        outcomes.push("aborted");
        throw call.signal.reason;
      },
    });
    const { code } = await lastError(await test.post(path, { ...streamed, n: 4 }));
    expect(code).toBe("engine_error");
    await until(() => idle(test) && outcomes.length === 3);
  });
});

describe("time limits", () => {
  it("first token, between tokens, total", async () => {
    let text = "";
    const test = await start({
      options: { timeouts: { firstTokenMs: 200, interTokenMs: 300, totalMs: 1_000 } },
      script: (request, call, workerId) => hangAfter(text)(request, call, workerId),
    });
    expect(await errorOf(await test.post(path, streamed))).toMatchObject({ status: 504, code: "first_token_timeout" });
    text = "abc";
    expect((await lastError(await test.post(path, streamed))).code).toBe("inter_token_timeout");
    expect(await errorOf(await test.post(path, chat))).toMatchObject({ status: 504, code: "inter_token_timeout" });
    const soon = await test.post(path, chat, { "x-stator-timeout-ms": "100" });
    expect(await errorOf(soon)).toMatchObject({ status: 504, code: "deadline_exceeded" });
    await until(() => idle(test));
  });
});

it("limits on the request's arrival do not touch the answer", async () => {
  const test = await start({
    options: { http: { headersTimeoutMs: 200, bodyTimeoutMs: 200, keepAliveTimeoutMs: 200, slowReaderTimeoutMs: 200 } },
    script: async (request, call) => {
      call.accept(0);
      for (let i = 0; i < 3; i++) {
        await new Promise((resolve) => setTimeout(resolve, 600));
        await sendDelta(call, { tokens: bytes("abc") });
      }
      await sendDelta(call, { tokens: new Uint32Array(0), finish: finish(request, 9, "stop") });
    },
  });
  const [stream, unary] = await Promise.all([
    test.post(path, { ...streamed, max_tokens: 9 }),
    test.post(path, { ...chat, max_tokens: 9 }),
  ]);
  expect(framesOf(await stream.text()).at(-2)).toContain(`"finish_reason":"stop"`);
  expect(await unary.json()).toMatchObject({ choices: [{ message: { content: "abcabcabc" } }] });
});

describe("a client that leaves", () => {
  it.each([true, false])("stops the work at once (stream: %s)", async (stream) => {
    const test = await start({ script: hangAfter("abc") });
    const controller = new AbortController();
    const response = fetch(test.url + path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...chat, stream, n: 3 }),
      signal: controller.signal,
    });
    response.catch(() => {});
    await until(() => test.activeCalls() === 3);
    if (stream) await response;
    const left = performance.now();
    controller.abort();
    await until(() => idle(test), 1_000);
    expect(performance.now() - left).toBeLessThan(1_000);
  });
});

describe("a reader that does not read", () => {
  const openRaw = (test: TestFrontend, body: unknown) => {
    const socket = connect(test.port, "127.0.0.1");
    socket.pause();
    const text = JSON.stringify(body);
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${text.length}\r\n\r\n${text}`,
    );
    return socket;
  };
  /** Sends as fast as credit allows; counts what it has sent. */
  const flood = (sent: { bytes: number }, total: number): WorkerScript => {
    const part = bytes("x".repeat(8192));
    return async (request, call) => {
      call.accept(0);
      let tokens = 0;
      while (!call.signal.aborted && sent.bytes < total) {
        await sendDelta(call, { tokens: part });
        sent.bytes += part.length;
        tokens += part.length;
      }
      await sendDelta(call, { tokens: new Uint32Array(0), finish: finish(request, tokens, "length") });
    };
  };

  it("pauses the generation, and gets everything when it reads on", async () => {
    const sent = { bytes: 0 };
    const total = 24 * 1024 * 1024;
    const test = await start({
      card: { contextLength: 1e8 },
      script: flood(sent, total),
      options: { http: { slowReaderBufferBytes: 64 * 1024 } },
    });
    const socket = openRaw(test, { ...streamed, max_tokens: 5e7 });
    let before = -1;
    await until(() => {
      const still = sent.bytes > 0 && sent.bytes === before;
      before = sent.bytes;
      return still;
    }, 10_000);
    expect(sent.bytes).toBeLessThan(total);
    let received = 0;
    let tail = "";
    socket.on("data", (data: Buffer) => {
      received += data.length;
      tail = (tail + data.toString("latin1")).slice(-100);
    });
    socket.resume();
    await until(() => tail.includes("[DONE]"), 20_000);
    expect(received).toBeGreaterThan(total);
    socket.destroy();
    await until(() => idle(test));
  });

  it("is cut with a typed error after the limit", async () => {
    const sent = { bytes: 0 };
    const test = await start({
      card: { contextLength: 1e8 },
      script: flood(sent, Number.POSITIVE_INFINITY),
      options: { http: { slowReaderBufferBytes: 64 * 1024, slowReaderTimeoutMs: 400 } },
    });
    const socket = openRaw(test, { ...streamed, max_tokens: 5e7 });
    await until(() => test.frontend.inFlight === 1);
    await until(() => idle(test), 5_000);
    const metrics = await (await fetch(`${test.url}/metrics`)).text();
    expect(metrics).toContain(`stator_frontend_errors_total{code="slow_reader"`);
    socket.destroy();
  });
});

describe("limits of the whole service", () => {
  it("refuses what is over maxStreams", async () => {
    const test = await start({
      card: { contextLength: 1e8 },
      script: hangAfter("abc"),
      options: { http: { maxStreams: 2 } },
    });
    const controller = new AbortController();
    const open = () =>
      fetch(test.url + path, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(streamed),
        signal: controller.signal,
      });
    const held = await Promise.all([open(), open()]);
    const refused = await test.post(path, chat);
    expect(refused.headers.get("retry-after")).toBe("1");
    expect(await errorOf(refused)).toMatchObject({ status: 503, code: "overloaded" });
    controller.abort();
    await until(() => idle(test));
    expect(held.map(({ status }) => status)).toEqual([200, 200]);
  });

  it("drains: new requests are refused, running ones finish", async () => {
    let go!: () => void;
    const gate = new Promise<void>((resolve) => {
      go = resolve;
    });
    const test = await start({
      card: { contextLength: 1e8 },
      script: async (request, call, workerId) => {
        await gate;
        await echo(request, call, workerId);
      },
    });
    const first = test.post(path, streamed);
    await until(() => test.activeCalls() === 1);
    const drained = test.frontend.drain(AbortSignal.timeout(5_000));
    const refused = await test.post(path, chat);
    expect(refused.headers.get("connection")).toBe("close");
    expect(await errorOf(refused)).toMatchObject({ status: 503, code: "draining" });
    expect((await fetch(`${test.url}/health`)).status).toBe(503);
    expect((await fetch(`${test.url}/live`)).status).toBe(200);
    go();
    expect(framesOf(await (await first).text()).at(-1)).toBe("[DONE]");
    expect(await drained).toBe(true);
  });

  it("gives up draining when told to", async () => {
    const test = await start({
      card: { contextLength: 1e8 },
      script: hangAfter("abc"),
    });
    const first = test.post(path, streamed);
    await until(() => test.activeCalls() === 1);
    expect(await test.frontend.drain(AbortSignal.timeout(50))).toBe(false);
    await test.frontend.close();
    expect((await lastError(await first)).code).toBe("draining");
    await until(() => test.activeCalls() === 0);
  });
});

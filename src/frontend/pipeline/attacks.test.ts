import { connect } from "node:net";
import { afterEach, describe, expect, it, vi } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { ChatFormat } from "../http/chat-response.ts";
import { bytes, finish, sendDelta, startTestFrontend, type TestFrontend, until } from "../test-frontend.contract.ts";

const path = "/v1/chat/completions";
const chat = { model: "test-model", messages: [{ role: "user", content: "hello" }], max_tokens: 5 };

let running: TestFrontend | undefined;
afterEach(async () => {
  vi.restoreAllMocks();
  await running?.close();
  running = undefined;
});

const idle = ({ router, frontend, activeCalls }: TestFrontend): boolean =>
  router.book.requests("w0") + router.book.requests("w1") + frontend.inFlight + activeCalls() === 0;

describe("a client that pipelines and leaves", () => {
  it("leaves nothing behind: every request of the connection ends", async () => {
    const seen: AbortSignal[] = [];
    const test = await startTestFrontend({
      script: async (_request, call) => {
        call.accept(0);
        seen.push(call.signal);
        await sendDelta(call, { tokens: bytes("a") });
        await new Promise((resolve) => call.signal.addEventListener("abort", resolve, { once: true }));
        throw call.signal.reason;
      },
    });
    running = test;
    const body = JSON.stringify({ ...chat, stream: true });
    const request = `POST ${path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
    const socket = connect(test.port, "127.0.0.1");
    socket.on("error", () => {});
    socket.write(request.repeat(5));
    await until(() => test.frontend.inFlight === 5 && seen.length === 5);
    socket.destroy();
    await until(() => idle(test));
    expect(seen.every(({ aborted }) => aborted)).toBe(true);
  });
});

describe("an answer that cannot be written", () => {
  it("fails alone", async () => {
    const test = await startTestFrontend({
      script: async (request, call) => {
        call.accept(0);
        await sendDelta(call, { tokens: bytes("abc") });
        await sendDelta(call, { tokens: bytes(""), finish: finish(request, 3, "length") });
      },
    });
    running = test;
    vi.spyOn(ChatFormat.prototype, "textChunk").mockImplementationOnce(() => {
      throw new TypeError("cannot be formatted");
    });
    const broken = await test.post(path, { ...chat, stream: true });
    const text = await broken.text();
    expect(broken.status === 500 || text.endsWith("data: [DONE]\n\n")).toBe(true);
    expect(text).toContain("internal_error");
    expect(text).not.toContain("cannot be formatted");
    expect((await test.post(path, { ...chat, stream: true })).status).toBe(200);
    await until(() => idle(test));
  });
});

describe("a worker that breaks the rules", () => {
  it("cannot send more tokens than were asked for", async () => {
    const test = await startTestFrontend({
      script: async (_request, call) => {
        call.accept(0);
        for (let i = 0; i < 100; i++) await sendDelta(call, { tokens: bytes("xxxxxxxxxx") });
      },
    });
    running = test;
    const answer = await test.post(path, chat);
    expect(answer.status).toBe(502);
    expect(((await answer.json()) as { error: { code: string } }).error.code).toBe("protocol_error");
    await until(() => idle(test));
  });

  const errorOf = async (response: Response) =>
    ((await response.json()) as { error: { code: string; message: string } }).error;

  it("cannot send tokens that its model does not have, which no other worker could go on behind", async () => {
    running = await startTestFrontend({
      script: async (_request, call) => {
        await sendDelta(call, { tokens: Uint32Array.of(65, 256) });
      },
    });
    const error = await errorOf(await running.post(path, chat));
    expect(error).toMatchObject({ code: "protocol_error", message: expect.stringContaining("vocabulary") });
    await until(() => idle(running!));
  });

  it("cannot send more alternatives than were asked for", async () => {
    running = await startTestFrontend({
      script: async (_request, call) => {
        const top = Array.from({ length: 3 }, (_, token) => ({ token, logprob: -1 }));
        await sendDelta(call, { tokens: bytes("a"), logprobs: [{ logprob: 0, top }] });
      },
    });
    const response = await running.post(path, { ...chat, logprobs: true, top_logprobs: 2 });
    expect((await errorOf(response)).message).toContain("logprobs");
    await until(() => idle(running!));
  });

  it("is not believed a usage that cannot be", async () => {
    const test = await startTestFrontend({
      script: async (_request, call) => {
        const usage = { promptTokens: 1e15, completionTokens: 1e15, cachedTokens: 1e15 };
        await sendDelta(call, { tokens: bytes("abc"), finish: { reason: "stop", usage } });
      },
    });
    running = test;
    expect(await (await test.post(path, chat)).json()).toMatchObject({
      usage: { prompt_tokens: 5, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 5 } },
    });
    const counted = await (await fetch(`${test.url}/metrics`)).text();
    for (const [kind, count] of Object.entries({ prompt: 5, completion: 3, cached: 5 })) {
      expect(counted).toContain(`worker_tokens_total{model="test-model",worker="w0",kind="${kind}"} ${count}\n`);
    }
  });

  it("cannot fail an answer by not ending a choice that is complete", async () => {
    let calls = 0;
    const test = await startTestFrontend({
      options: { timeouts: { firstTokenMs: 250, interTokenMs: 300 } },
      script: async (request, call) => {
        const tokens = ++calls === 1 ? 1 : 5;
        for (let i = 0; i < tokens; i++) {
          if (i > 0) await new Promise((resolve) => setTimeout(resolve, 200));
          await sendDelta(call, { tokens: bytes("a") });
        }
        await sendDelta(call, { tokens: bytes(""), finish: finish(request, tokens, "stop") });
        if (tokens === 1) await new Promise((resolve) => call.signal.addEventListener("abort", resolve));
      },
    });
    running = test;
    const response = await test.post(path, { ...chat, n: 2 });
    expect([response.status, await response.json()]).toMatchObject([
      200,
      { choices: [{ message: { content: "a" } }, { message: { content: "aaaaa" } }] },
    ]);
    await until(() => idle(test), 10_000);
  });

  it("cannot make its text come twice by refusing after it has sent some", async () => {
    let calls = 0;
    const test = await startTestFrontend({
      script: async (_request, call) => {
        calls += 1;
        await sendDelta(call, { tokens: bytes("AB") });
        throw new StatorError("overloaded", "full after all");
      },
    });
    running = test;
    const text = await (await test.post(path, { ...chat, stream: true })).text();
    expect(calls).toBe(1);
    expect(text).toContain('"code":"overloaded"');
  });
});

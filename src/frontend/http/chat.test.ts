import { afterEach, describe, expect, it } from "vitest";
import { decodeFloats } from "../../protocol/codec.ts";
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

const chat = { model: "test-model", messages: [{ role: "user", content: "hello" }], max_tokens: 7 };

describe("POST /v1/chat/completions", () => {
  it("answers at once", async () => {
    const { post } = await start();
    const response = await post("/v1/chat/completions", { ...chat, user: "me" });
    expect(response.status).toBe(200);
    expect(response.headers.get("x-stator-ignored")).toBe("user");
    expect(response.headers.get("x-stator-worker-id")).toBe("w0");
    expect(response.headers.get("x-request-id")).toMatch(/^[0-9a-z]{24}$/);
    expect((await response.json()) as Json).toEqual({
      id: expect.stringMatching(/^chatcmpl-/),
      object: "chat.completion",
      created: expect.any(Number),
      model: "test-model",
      system_fingerprint: null,
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: "hellohe", refusal: null },
          logprobs: null,
          finish_reason: "length",
        },
      ],
      usage: {
        prompt_tokens: 5,
        completion_tokens: 7,
        total_tokens: 12,
        prompt_tokens_details: { cached_tokens: 3 },
      },
    });
  });

  it("streams: role first, null until the one finish, usage, [DONE]", async () => {
    const { post } = await start();
    const response = await post("/v1/chat/completions", {
      ...chat,
      stream: true,
      stream_options: { include_usage: true },
    });
    expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
    expect(response.headers.get("x-stator-worker-id")).toBe("w0");
    const frames = framesOf(await response.text());
    expect(frames.at(-1)).toBe("[DONE]");
    const chunks = frames.slice(0, -1).map((frame) => JSON.parse(frame));
    expect(chunks[0].choices).toEqual([
      { index: 0, delta: { role: "assistant", content: "", refusal: null }, logprobs: null, finish_reason: null },
    ]);
    expect(textOf(chunks)).toBe("hellohe");
    expect(chunks.map((chunk) => chunk.choices[0]?.finish_reason).filter(Boolean)).toEqual(["length"]);
    const usage = chunks.at(-1);
    expect(usage.choices).toEqual([]);
    expect(usage.usage).toMatchObject({ prompt_tokens: 5, completion_tokens: 7, total_tokens: 12 });
    expect(chunks.slice(0, -1).every((chunk) => chunk.usage === null)).toBe(true);
    expect(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.object} ${chunk.model}`)).size).toBe(1);
  });

  it("numbers n choices, also at temperature 0, and counts the prompt once", async () => {
    const { post } = await start();
    const body = { ...chat, n: 40, temperature: 0 };
    const unary = (await (await post("/v1/chat/completions", body)).json()) as Json;
    expect(unary.choices.map((choice: { index: number }) => choice.index)).toEqual([...Array(40).keys()]);
    expect(unary.usage).toMatchObject({ prompt_tokens: 5, completion_tokens: 280 });
    const response = await post("/v1/chat/completions", { ...body, stream: true });
    const chunks = chunksOf(await response.text());
    for (let index = 0; index < 40; index++) {
      const own = chunks.filter((chunk) => chunk.choices[0]?.index === index);
      expect(own[0]?.choices[0]?.delta.role).toBe("assistant");
      expect(textOf(own)).toBe("hellohe");
      expect(own.filter((chunk) => chunk.choices[0]?.finish_reason).length).toBe(1);
    }
  });

  it("gives choice i the seed s + i and every sequence its own id", async () => {
    const seen: { seed: number | undefined; id: string }[] = [];
    const { post } = await start({
      script: (request, call, workerId) => {
        seen.push({ seed: request.sampling.seed, id: request.requestId });
        return echo(request, call, workerId);
      },
    });
    await post("/v1/chat/completions", { ...chat, n: 3, seed: 4294967295 });
    expect(seen.map(({ seed }) => seed)).toEqual([4294967295, 0, 1]);
    expect(new Set(seen.map(({ id }) => id)).size).toBe(3);
  });

  it("has one logprobs entry per completion token, with exactly N alternatives", async () => {
    const { post } = await start();
    const body = { ...chat, messages: [{ role: "user", content: "h\u00e9\u20ac" }], logprobs: true, top_logprobs: 3 };
    const unary = (await (await post("/v1/chat/completions", body)).json()) as Json;
    const streamed = chunksOf(await (await post("/v1/chat/completions", { ...body, stream: true })).text());
    const fromStream = streamed.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
    for (const content of [unary.choices[0].logprobs.content, fromStream]) {
      expect(content.length).toBe(7);
      expect(content[0]).toMatchObject({ token: "h", logprob: -0.5, bytes: [104] });
      expect(content.every((entry: { top_logprobs: unknown[] }) => entry.top_logprobs.length === 3)).toBe(true);
    }
    expect(textOf(streamed)).toBe(unary.choices[0].message.content);
  });

  it("ends at a stop string, keeps it to itself, and stops the worker", async () => {
    const outcomes: string[] = [];
    const test = await start({
      script: async (request, call) => {
        call.accept(0);
        for (const part of ["a lo", "ng E", "ND of", " it"]) {
          await sendDelta(call, { tokens: bytes(part) });
          await new Promise((resolve) => setImmediate(resolve));
        }
        if (!call.signal.aborted) await new Promise((resolve) => call.signal.addEventListener("abort", resolve));
        outcomes.push(call.signal.reason.code);
        await sendDelta(call, { tokens: new Uint32Array(0), finish: finish(request, 10, "abort") });
      },
    });
    for (const stream of [false, true]) {
      const body = {
        ...chat,
        max_tokens: 100,
        stop: ["zzz", "END"],
        stream,
        ...(stream ? { stream_options: { include_usage: true } } : {}),
      };
      const text = await (await test.post("/v1/chat/completions", body)).text();
      const answer = stream ? chunksOf(text) : [JSON.parse(text)];
      expect(stream ? textOf(answer) : answer[0].choices[0].message.content).toBe("a long ");
      expect(answer.map((part) => part.choices[0]?.finish_reason).filter(Boolean)).toEqual(["stop"]);
      expect(answer.at(-1).usage).toMatchObject({ completion_tokens: 10, prompt_tokens_details: { cached_tokens: 3 } });
    }
    expect(outcomes).toEqual(["client_closed", "client_closed"]);
    await until(
      () => test.activeCalls() === 0 && test.router.book.requests("w0") + test.router.book.requests("w1") === 0,
    );
  });

  it("carries the usage so far when asked", async () => {
    const { post } = await start();
    const response = await post("/v1/chat/completions", {
      ...chat,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    });
    const chunks = chunksOf(await response.text());
    const counts = chunks.slice(1).map((chunk) => chunk.usage.completion_tokens);
    expect(counts.at(-1)).toBe(7);
    expect([...counts].sort((a, b) => a - b)).toEqual(counts);
  });

  it("passes a JSON schema on as the client wrote it", async () => {
    const grammars: unknown[] = [];
    const { post } = await start({
      script: (request, call, workerId) => {
        grammars.push(request.grammar);
        return echo(request, call, workerId);
      },
    });
    const schema = `{"type":"object", "properties":{"b":{},"1":{"maximum":12345678901234567890}}}`;
    await post(
      "/v1/chat/completions",
      `{"model":"test-model","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":${schema}}}}`,
    );
    expect(grammars).toEqual([{ kind: "json_schema", schema }]);
  });
});

describe("POST /v1/completions", () => {
  it("takes text, texts, ids and lists of ids", async () => {
    const { post } = await start();
    const base = { model: "test/alias", max_tokens: 3 };
    const texts = async (prompt: unknown, more = {}): Promise<string[]> => {
      const answer = (await (await post("/v1/completions", { ...base, prompt, ...more })).json()) as Json;
      expect(answer.object).toBe("text_completion");
      expect(answer.model).toBe("test-model");
      return answer.choices.map((choice: { text: string }) => choice.text);
    };
    expect(await texts("abc")).toEqual(["abc"]);
    expect(await texts(["abc", "xyz"])).toEqual(["abc", "xyz"]);
    expect(await texts([97, 98])).toEqual(["aba"]);
    expect(await texts([[97], [98]], { n: 2 })).toEqual(["aaa", "aaa", "bbb", "bbb"]);
  });

  it("streams with legacy logprobs, and gives 16 tokens by default", async () => {
    const { post } = await start();
    const response = await post("/v1/completions", { model: "test-model", prompt: "ab", stream: true, logprobs: 2 });
    const chunks = chunksOf(await response.text());
    const logprobs = chunks.map((chunk) => chunk.choices[0]?.logprobs).filter(Boolean);
    expect(textOf(chunks)).toBe("abababababababab");
    expect(logprobs.flatMap((entry) => entry.tokens).join("")).toBe("abababababababab");
    expect(logprobs.flatMap((entry) => entry.text_offset)).toEqual([...Array(16).keys()]);
    expect(logprobs.flatMap((entry) => entry.top_logprobs).every((top) => Object.keys(top).length === 2)).toBe(true);
  });
});

describe("POST /v1/embeddings", () => {
  it("answers floats and base64, in order", async () => {
    const { post } = await start();
    const input = Array.from({ length: 20 }, (_, i) => "x".repeat(i + 1));
    const floats = (await (await post("/v1/embeddings", { model: "test-model", input })).json()) as Json;
    expect(floats.data.map((entry: { embedding: number[] }) => entry.embedding[0])).toEqual(
      input.map((text) => text.length),
    );
    expect(floats.usage).toEqual({ prompt_tokens: 210, total_tokens: 210 });
    const encoded = (await (
      await post("/v1/embeddings", { model: "test-model", input: [1, 2, 3], encoding_format: "base64", dimensions: 4 })
    ).json()) as Json;
    expect(decodeFloats(Buffer.from(encoded.data[0].embedding, "base64"))).toEqual(Float32Array.of(3, 0.5, -1, 2));
  });
});

describe("GET", () => {
  it("/v1/models lists what is served; one is found by an id with slashes", async () => {
    const { url } = await start();
    const list = (await (await fetch(`${url}/v1/models`)).json()) as Json;
    expect(list.data.map((model: { id: string }) => model.id)).toEqual(["test-model"]);
    for (const id of ["test-model", "test/alias", "test%2Falias"]) {
      expect((await (await fetch(`${url}/v1/models/${id}`)).json()) as Json).toMatchObject({
        id: "test-model",
        object: "model",
      });
    }
    expect((await fetch(`${url}/v1/models/nope`)).status).toBe(404);
  });

  it("/health is not ok when no worker of a model takes calls, and ok again with one that does", async () => {
    const test = await startTestFrontend();
    // At an address where no probe is ever answered.
    const [first, second] = ["w0", "w1"].map((id) => {
      return { ...test.catalog.lookup("test-model")!.worker(id)!, address: "memory://nowhere" };
    });
    const health = async (): Promise<{ status: number; reasons: string[] }> => {
      const response = await fetch(`${test.url}/health`);
      return { status: response.status, reasons: ((await response.json()) as { reasons: string[] }).reasons };
    };
    test.catalog.inhibitions.inhibit(first!, "lost");
    expect((await health()).status).toBe(200);
    test.catalog.inhibitions.inhibit(second!, "lost");
    const none = await health();
    expect(none.status).toBe(503);
    expect(none.reasons).toContain('no worker of model "test-model" takes calls');
    test.catalog.inhibitions.discovered("w1", undefined);
    expect((await health()).status).toBe(200);
    await test.close();
  });

  it("/health says why not", async () => {
    const { url } = await start({ options: { expected: { models: ["test-model", "other"], workers: 3 } } });
    const response = await fetch(`${url}/health`);
    expect(response.status).toBe(503);
    expect(((await response.json()) as Json).reasons).toEqual([
      `model "other" is not ready`,
      "2 of 3 workers are ready",
    ]);
    expect((await fetch(`${url}/live`)).status).toBe(200);
  });

  it("/metrics counts", async () => {
    const { url, post } = await start();
    await post("/v1/chat/completions", chat);
    await post("/v1/chat/completions", { ...chat, model: "nope" });
    const text = await (await fetch(`${url}/metrics`)).text();
    expect(text).toContain(`stator_frontend_requests_total{model="test-model",endpoint="chat",status="200"} 1`);
    expect(text).toContain(`stator_frontend_requests_total{model="unknown",endpoint="chat",status="404"} 1`);
    expect(text).toContain(`stator_frontend_completion_tokens_total{model="test-model"} 7`);
    expect(text).toContain(`stator_frontend_worker_requests_in_flight{model="test-model",worker="w0"} 0`);
  });

  it("the admin port lists workers and models", async () => {
    const { adminUrl } = await start();
    const { workers } = (await (await fetch(`${adminUrl}/workers`)).json()) as Json;
    expect(workers[0]).toMatchObject({ id: "w0", model: "test-model", state: "ready", load: { requests: 0 } });
    expect(((await (await fetch(`${adminUrl}/models`)).json()) as Json).models[0]).toMatchObject({
      name: "test-model",
    });
    expect((await fetch(`${adminUrl}/health`)).status).toBe(200);
    expect((await fetch(`${adminUrl}/nope`)).status).toBe(404);
  });
});

// biome-ignore lint/suspicious/noExplicitAny: answers are looked into freely
type Json = any;

function chunksOf(body: string): Json[] {
  const frames = framesOf(body);
  expect(frames.at(-1)).toBe("[DONE]");
  return frames.slice(0, -1).map((frame) => JSON.parse(frame));
}

function textOf(chunks: Json[]): string {
  return chunks.map(({ choices: [choice] }) => choice?.delta?.content ?? choice?.text ?? "").join("");
}

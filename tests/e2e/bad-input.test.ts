import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { RawHttp } from "../harness/raw-http.ts";
import { StatorServer, until } from "../harness/stator-process.ts";

const chat = "/v1/chat/completions";
const completions = "/v1/completions";
const embeddings = "/v1/embeddings";
const messages = [{ role: "user", content: "hi" }];
const model = "stator-echo";

/** A chat with something wrong. */
const c = (extra: Record<string, unknown>): string => JSON.stringify({ model, messages, max_tokens: 4, ...extra });
/** A completion with something wrong. */
const p = (extra: Record<string, unknown>): string => JSON.stringify({ model, prompt: "hi", max_tokens: 4, ...extra });
const e = (extra: Record<string, unknown>): string => JSON.stringify({ model, input: "hi", ...extra });
const nested = (depth: number): string => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;

type Row = readonly [
  name: string,
  path: string,
  body: string | Buffer,
  status: number,
  code: string,
  param: string | null,
];

const rows: readonly Row[] = [
  // The body as such.
  ["an empty body", chat, "", 400, "invalid_json", null],
  ["no JSON", chat, "hello", 400, "invalid_json", null],
  ["cut JSON", chat, '{"model":"stator-echo"', 400, "invalid_json", null],
  ["a trailing comma", chat, '{"model":"stator-echo",}', 400, "invalid_json", null],
  ["two documents", chat, "{}{}", 400, "invalid_json", null],
  ["raw control bytes in a string", chat, '{"model":"a\u0001b"}', 400, "invalid_json", null],
  ["NaN", chat, '{"model":"stator-echo","temperature":NaN}', 400, "invalid_json", null],
  ["an array", chat, "[]", 400, "invalid_json", null],
  ["null", chat, "null", 400, "invalid_json", null],
  ["a number", chat, "42", 400, "invalid_json", null],
  [
    "broken UTF-8",
    chat,
    Buffer.concat([Buffer.from('{"model":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}')]),
    400,
    "invalid_encoding",
    null,
  ],
  [
    "overlong UTF-8",
    chat,
    Buffer.concat([Buffer.from('{"model":"'), Buffer.from([0xc0, 0xaf]), Buffer.from('"}')]),
    400,
    "invalid_encoding",
    null,
  ],
  ["UTF-16", chat, Buffer.from(c({}), "utf16le"), 400, "invalid_json", null],
  ["deep nesting", chat, `{"model":"stator-echo","messages":${nested(5000)}}`, 400, "invalid_json", null],
  ["deep arrays", chat, "[".repeat(100_000), 400, "invalid_json", null],
  // Missing and unknown.
  ["no model", chat, JSON.stringify({ messages }), 400, "missing_parameter", "model"],
  ["no messages", chat, JSON.stringify({ model }), 400, "missing_parameter", "messages"],
  ["no prompt", completions, JSON.stringify({ model }), 400, "missing_parameter", "prompt"],
  ["no input", embeddings, JSON.stringify({ model }), 400, "missing_parameter", "input"],
  ["unknown model", chat, c({ model: "gpt-9" }), 404, "model_not_found", "model"],
  ["blank model", chat, c({ model: "  " }), 400, "invalid_value", "model"],
  ["model as a number", chat, c({ model: 3 }), 400, "invalid_value", "model"],
  ["unknown parameter", chat, c({ temprature: 1 }), 400, "unknown_parameter", "temprature"],
  [
    "__proto__",
    chat,
    `{"model":"${model}","messages":[{"role":"user","content":"x"}],"__proto__":{"max_tokens":1}}`,
    400,
    "unknown_parameter",
    "__proto__",
  ],
  ["constructor", chat, c({ constructor: { prototype: {} } }), 400, "unknown_parameter", "constructor"],
  [
    "unknown message field",
    chat,
    c({ messages: [{ role: "user", content: "x", colour: 1 }] }),
    400,
    "unknown_parameter",
    "messages[0].colour",
  ],
  // Known, but not here.
  ["tools", chat, c({ tools: [{ type: "function", function: { name: "f" } }] }), 400, "unsupported_parameter", "tools"],
  ["tool_choice", chat, c({ tool_choice: "auto" }), 400, "unsupported_parameter", "tool_choice"],
  ["guided_json", chat, c({ guided_json: {} }), 400, "unsupported_parameter", "guided_json"],
  ["echo", completions, p({ echo: true }), 400, "unsupported_parameter", "echo"],
  ["suffix", completions, p({ suffix: "x" }), 400, "unsupported_parameter", "suffix"],
  ["best_of", completions, p({ best_of: 3 }), 400, "unsupported_parameter", "best_of"],
  [
    "a grammar on an engine without",
    chat,
    c({ response_format: { type: "json_object" } }),
    400,
    "unsupported_parameter",
    "response_format",
  ],
  // Messages.
  ["messages as a string", chat, c({ messages: "hi" }), 400, "invalid_value", "messages"],
  ["no message", chat, c({ messages: [] }), 400, "invalid_value", "messages"],
  ["message as a string", chat, c({ messages: ["hi"] }), 400, "invalid_value", "messages[0]"],
  ["no role", chat, c({ messages: [{ content: "x" }] }), 400, "missing_parameter", "messages[0].role"],
  ["unknown role", chat, c({ messages: [{ role: "king", content: "x" }] }), 400, "invalid_value", "messages[0].role"],
  [
    "content as a number",
    chat,
    c({ messages: [{ role: "user", content: 5 }] }),
    400,
    "invalid_value",
    "messages[0].content",
  ],
  [
    "an image",
    chat,
    c({ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "http://127.0.0.1/x" } }] }] }),
    400,
    "unsupported_parameter",
    "messages[0].content[0].type",
  ],
  [
    "too many messages",
    chat,
    c({ messages: Array.from({ length: 5000 }, () => messages[0]) }),
    400,
    "invalid_value",
    "messages",
  ],
  // Ranges and types.
  ["temperature 3", chat, c({ temperature: 3 }), 400, "invalid_value", "temperature"],
  ["temperature as text", chat, c({ temperature: "1" }), 400, "invalid_value", "temperature"],
  ["top_p 2", chat, c({ top_p: 2 }), 400, "invalid_value", "top_p"],
  ["top_k 1.5", chat, c({ top_k: 1.5 }), 400, "invalid_value", "top_k"],
  ["min_p -1", chat, c({ min_p: -1 }), 400, "invalid_value", "min_p"],
  ["n 0", chat, c({ n: 0 }), 400, "invalid_value", "n"],
  ["n 129", chat, c({ n: 129 }), 400, "invalid_value", "n"],
  ["max_tokens 0", chat, c({ max_tokens: 0 }), 400, "invalid_value", "max_tokens"],
  ["max_tokens -1", completions, p({ max_tokens: -1 }), 400, "invalid_value", "max_tokens"],
  [
    "max_tokens and max_completion_tokens that differ",
    chat,
    c({ max_completion_tokens: 9 }),
    400,
    "invalid_value",
    "max_completion_tokens",
  ],
  ["min_tokens above max_tokens", chat, c({ min_tokens: 5 }), 400, "invalid_value", "min_tokens"],
  ["presence_penalty 3", chat, c({ presence_penalty: 3 }), 400, "invalid_value", "presence_penalty"],
  ["frequency_penalty as null text", chat, c({ frequency_penalty: "null" }), 400, "invalid_value", "frequency_penalty"],
  ["repetition_penalty 0", chat, c({ repetition_penalty: 0 }), 400, "invalid_value", "repetition_penalty"],
  ["seed 1.5", chat, c({ seed: 1.5 }), 400, "invalid_value", "seed"],
  ["stream as text", chat, c({ stream: "yes" }), 400, "invalid_value", "stream"],
  [
    "stream_options without stream",
    chat,
    c({ stream_options: { include_usage: true } }),
    400,
    "invalid_value",
    "stream_options",
  ],
  [
    "unknown stream option",
    chat,
    c({ stream: true, stream_options: { usage: true } }),
    400,
    "unknown_parameter",
    "stream_options.usage",
  ],
  ["33 stop strings", chat, c({ stop: Array.from({ length: 33 }, (_, i) => `s${i}`) }), 400, "invalid_value", "stop"],
  ["an empty stop string", chat, c({ stop: ["a", ""] }), 400, "invalid_value", "stop[1]"],
  ["stop as a number", chat, c({ stop: 5 }), 400, "invalid_value", "stop"],
  ["top_logprobs without logprobs", chat, c({ top_logprobs: 2 }), 400, "invalid_value", "top_logprobs"],
  ["top_logprobs 21", chat, c({ logprobs: true, top_logprobs: 21 }), 400, "invalid_value", "top_logprobs"],
  ["logprobs 6 on completions", completions, p({ logprobs: 6 }), 400, "invalid_value", "logprobs"],
  ["a logit_bias of 101", chat, c({ logit_bias: { "5": 101 } }), 400, "invalid_value", "logit_bias.5"],
  ["a logit_bias for a word", chat, c({ logit_bias: { hello: 1 } }), 400, "invalid_value", "logit_bias.hello"],
  [
    "a logit_bias on an engine without",
    chat,
    c({ logit_bias: { "999999": 1 } }),
    400,
    "unsupported_parameter",
    "logit_bias",
  ],
  [
    "response_format of an unknown type",
    chat,
    c({ response_format: { type: "xml" } }),
    400,
    "invalid_value",
    "response_format.type",
  ],
  [
    "json_schema without a schema",
    chat,
    c({ response_format: { type: "json_schema", json_schema: { name: "x" } } }),
    400,
    "missing_parameter",
    "response_format.json_schema.schema",
  ],
  // Prompts.
  ["an empty prompt list", completions, p({ prompt: [] }), 400, "invalid_value", "prompt"],
  ["an empty prompt", completions, p({ prompt: "" }), 400, "invalid_value", "prompt"],
  ["a negative token id", completions, p({ prompt: [1, -2] }), 400, "invalid_value", "prompt[1]"],
  ["a token id outside the vocabulary", completions, p({ prompt: [1, 4_000_000] }), 400, "invalid_value", "prompt[1]"],
  ["a fractional token id", completions, p({ prompt: [1.5] }), 400, "invalid_value", "prompt[0]"],
  ["a mixed prompt", completions, p({ prompt: ["a", 5] }), 400, "invalid_value", "prompt[1]"],
  ["an oversize prompt", completions, p({ prompt: "x".repeat(5000) }), 400, "context_length_exceeded", "prompt"],
  [
    "an oversize chat",
    chat,
    c({ messages: [{ role: "user", content: "x".repeat(5000) }] }),
    400,
    "context_length_exceeded",
    "messages",
  ],
  ["max_tokens beyond the context", chat, c({ max_tokens: 5000 }), 400, "context_length_exceeded", "max_tokens"],
  ["a batch beyond 128 choices", completions, p({ prompt: ["a", "b"], n: 100 }), 400, "invalid_value", "n"],
  ["an encoding_format", embeddings, e({ encoding_format: "int8" }), 400, "invalid_value", "encoding_format"],
  ["other dimensions", embeddings, e({ dimensions: 3 }), 400, "unsupported_parameter", "dimensions"],
  [
    "a huge body",
    chat,
    c({ messages: [{ role: "user", content: "x".repeat(300_000) }] }),
    413,
    "payload_too_large",
    null,
  ],
  // Routes.
  ["an unknown route", "/v1/nope", "{}", 404, "route_not_found", null],
  ["a traversal", "/v1/../../etc/passwd", "{}", 404, "route_not_found", null],
  ["POST to a GET route", "/v1/models", "{}", 405, "method_not_allowed", null],
];

describe("bad input", () => {
  let server: StatorServer;

  beforeAll(async () => {
    const limits = ["http.maxBodyBytes=262144", "http.headersTimeoutMs=1000", "http.bodyTimeoutMs=1500"];
    server = await StatorServer.serve([
      "--engine",
      "echo",
      "--workers",
      "1",
      "--context-length",
      "4096",
      ...limits.flatMap((set) => ["--set", set]),
    ]);
  });
  afterAll(() => server?.stop());

  const healthy = async (): Promise<void> => {
    const answer = await server.post(chat, c({}));
    expect(answer.status).toBe(200);
    expect((await fetch(`${server.url}/health`)).status).toBe(200);
  };

  it("has at least 60 rows", () => {
    expect(rows.length).toBeGreaterThanOrEqual(60);
  });

  it.each(rows)("%s", async (_name, path, body, status, code, param) => {
    const raw = RawHttp.open(server.url).post(path, body);
    const answer = await raw.answer();
    raw.close();
    expect(answer.status, answer.body).toBe(status);
    const { error } = JSON.parse(answer.body) as {
      error: { message: string; type: string; code: string; param: string | null };
    };
    expect({ code: error.code, param: error.param }).toEqual({ code, param });
    expect(error.message).toContain(`docs/errors.md#${code}`);
    expect(error.message).not.toMatch(/\n\s+at |node:internal|\.ts:\d|\.js:\d/);
    expect(answer.head.toLowerCase()).toContain("x-request-id:");
  });

  it("names all harmless parameters that it ignored", async () => {
    const answer = await server.post(chat, c({ user: "me", store: false, metadata: { a: "b" } }));
    expect(answer.status).toBe(200);
    expect(answer.headers.get("x-stator-ignored")?.split(/, ?/).sort()).toEqual(["metadata", "store", "user"]);
  });

  it("takes null as absent", async () => {
    const answer = await server.post(
      chat,
      c({ temperature: null, stop: null, tools: null, logit_bias: null, stream_options: null }),
    );
    expect(answer.status).toBe(200);
  });

  it.each([
    ["a missing content type", [], 415],
    ["text/plain", ["content-type: text/plain"], 415],
    ["a compressed body", ["content-type: application/json", "content-encoding: gzip"], 415],
    ["a bad x-stator-timeout-ms", ["content-type: application/json", "x-stator-timeout-ms: soon"], 400],
    ["an unknown worker", ["content-type: application/json", "x-stator-worker-id: nobody"], 404],
    ["a header over the limit", ["content-type: application/json", `x-big: ${"a".repeat(40_000)}`], 431],
    ["two content lengths", ["content-type: application/json", "content-length: 5", "content-length: 6"], 400],
    [
      "length and chunked together",
      ["content-type: application/json", "content-length: 5", "transfer-encoding: chunked"],
      400,
    ],
    ["a bad content length", ["content-type: application/json", "content-length: five"], 400],
    ["a control byte in a header", ["content-type: application/json", "x-a: b\u0001c"], 400],
  ] as const)("header abuse: %s", async (_name, head, status) => {
    const raw = RawHttp.open(server.url).post(chat, c({}), head);
    const answer = await raw.answer();
    raw.close();
    expect(answer.status, answer.body).toBe(status);
    expect(JSON.parse(answer.body)).toHaveProperty("error.code");
    await healthy();
  });

  it("answers a body that only announces its size with 413 at once", async () => {
    const raw = RawHttp.open(server.url).post(chat, "{", [
      "content-type: application/json",
      "content-length: 999999999",
    ]);
    expect((await raw.answer(1_000)).status).toBe(413);
    raw.close();
  });

  it("cuts a chunked body at the limit", async () => {
    const raw = RawHttp.open(server.url).post(chat, "", [
      "content-type: application/json",
      "transfer-encoding: chunked",
    ]);
    for (let i = 0; i < 40; i++) raw.write(`2710\r\n${"x".repeat(10_000)}\r\n`);
    expect((await raw.answer()).status).toBe(413);
    raw.close();
  });

  it.each([
    "GARBAGE\r\n\r\n",
    "GET / HTTP/9.9\r\n\r\n",
    "\u0016\u0003\u0001\u0002\u0000",
    "GET /health HTTP/1.1\r\n\r\n",
  ])("survives the request line %j", async (line) => {
    const raw = RawHttp.open(server.url).write(line);
    expect((await raw.answer()).status).toBe(400);
    raw.close();
    await healthy();
  });

  it("cuts a client that sends its head slowly", async () => {
    const raw = RawHttp.open(server.url).write("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-slow: ");
    const timer = setInterval(() => raw.write("a"), 100);
    const answer = await raw.answer(8_000);
    clearInterval(timer);
    expect(answer.status).toBe(408);
    await until(
      () => raw.closed,
      5_000,
      () => "the connection stays open",
    );
    raw.close();
    await healthy();
  });

  it("cuts a client that sends its body slowly", async () => {
    const raw = RawHttp.open(server.url).post(chat, '{"model":', [
      "content-type: application/json",
      "content-length: 10000",
    ]);
    const timer = setInterval(() => raw.write(" "), 100);
    const answer = await raw.answer(8_000);
    clearInterval(timer);
    expect(answer.status).toBe(408);
    raw.close();
    await healthy();
  });

  it("answers a client that has closed its side, and keeps nothing of it", async () => {
    const raw = RawHttp.open(server.url).post(chat, c({}));
    raw.socket.end();
    await until(
      () => raw.closed || raw.received.includes("chat.completion"),
      5_000,
      () => raw.received,
    );
    raw.close();
    const half = RawHttp.open(server.url).write(
      "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{",
    );
    half.socket.end();
    await until(
      () => half.closed,
      5_000,
      () => "half-closed socket stays open",
    );
    half.close();
    await healthy();
  });

  it("keeps 200 sockets that say nothing from hurting others", async () => {
    const silent = Array.from({ length: 200 }, () => RawHttp.open(server.url));
    await healthy();
    await until(
      () => silent.every(({ closed }) => closed),
      15_000,
      () => "silent sockets stay open",
    );
  });

  it("gives every answer an id, the client's own when it is sane", async () => {
    const own = await server.post(chat, c({}), { headers: { "x-request-id": "my-id-1" } });
    expect(own.headers.get("x-request-id")).toBe("my-id-1");
    const bad = await server.post(chat, c({}), { headers: { "x-request-id": "a b\tc<script>" } });
    expect(bad.headers.get("x-request-id")).toMatch(/^[\w-]+$/);
  });
});

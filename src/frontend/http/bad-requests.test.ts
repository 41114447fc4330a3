import { connect, type Socket } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { framesOf, startTestFrontend, type TestFrontend, until } from "../test-frontend.contract.ts";

let test: TestFrontend;
beforeAll(async () => {
  test = await startTestFrontend({
    options: {
      http: {
        maxBodyBytes: 100_000,
        maxHeaderBytes: 8192,
        maxNesting: 16,
        headersTimeoutMs: 500,
        bodyTimeoutMs: 500,
        keepAliveTimeoutMs: 2_000,
      },
    },
  });
});
afterAll(() => test.close());

const path = "/v1/chat/completions";
const valid = JSON.stringify({ model: "test-model", messages: [{ role: "user", content: "hello" }], max_tokens: 3 });

interface RawAnswer {
  readonly status: number;
  readonly headers: string;
  readonly body: string;
  readonly socket: Socket;
}

/** Sends bytes as they are and reads until the whole first answer is there, or the connection ends. */
function raw(parts: readonly (string | Buffer)[], options: { end?: boolean } = {}): Promise<RawAnswer> {
  return new Promise((resolve, reject) => {
    const socket = connect(test.port, "127.0.0.1");
    let received = "";
    const done = (): void => {
      const headEnd = received.indexOf("\r\n\r\n");
      if (headEnd < 0) return;
      const headers = received.slice(0, headEnd);
      const body = received.slice(headEnd + 4);
      const length = Number(/content-length: (\d+)/i.exec(headers)?.[1] ?? "0");
      if (/^HTTP\/1.1 1/.test(headers)) return;
      if (Buffer.byteLength(body) < length) return;
      resolve({ status: Number(headers.split(" ")[1]), headers, body, socket });
    };
    socket.on("data", (data) => {
      received += data.toString("utf8");
      done();
    });
    socket.on("error", reject);
    socket.on("close", () => {
      done();
      reject(new Error(`closed after ${JSON.stringify(received)}`));
    });
    for (const part of parts) socket.write(part);
    if (options.end) socket.end();
  });
}

const post = (body: string | Buffer, headers = "", target = path): (string | Buffer)[] => [
  `POST ${target} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n${headers}\r\n`,
  body,
];

async function expectError(answer: Promise<RawAnswer>, status: number, code: string, param: string | null = null) {
  const { status: got, headers, body, socket } = await answer;
  socket.destroy();
  const { error } = JSON.parse(body);
  expect({ status: got, code: error.code, param: error.param }).toEqual({ status, code, param });
  expect(Object.keys(error).sort()).toEqual(["code", "message", "param", "type"]);
  expect(error.message).toContain(`docs/errors.md#${code}`);
  expect(headers).toMatch(/x-request-id: \S+/i);
  expect(headers).toMatch(/content-type: application\/json/i);
}

async function expectHealthy(): Promise<void> {
  const response = await test.post(path, valid);
  expect(response.status).toBe(200);
  await response.text();
  expect((await fetch(`${test.url}/health`)).status).toBe(200);
}

describe("bodies", () => {
  const nested = (depth: number) => `${"[".repeat(depth)}${"]".repeat(depth)}`;
  it.each<[string, string | Buffer, number, string, string | null]>([
    ["empty", "", 400, "invalid_json", null],
    ["cut off", `{"model":`, 400, "invalid_json", null],
    ["not JSON", "hello", 400, "invalid_json", null],
    ["JSON with a raw control byte", `{"model":"a\nb"}`, 400, "invalid_json", null],
    ["a byte order mark", `\ufeff${valid}`, 400, "invalid_json", null],
    ["trailing comma", `${valid.slice(0, -1)},}`, 400, "invalid_json", null],
    ["an array", "[]", 400, "invalid_json", null],
    ["null", "null", 400, "invalid_json", null],
    [
      "bad UTF-8",
      Buffer.concat([Buffer.from(`{"model":"`), Buffer.of(0xff, 0xc0), Buffer.from(`"}`)]),
      400,
      "invalid_encoding",
      null,
    ],
    ["UTF-16", Buffer.from(valid, "utf16le"), 400, "invalid_json", null],
    ["deep", `{"model":"m","messages":${nested(40_000)}}`, 400, "invalid_json", null],
    ["just too deep", `{"a":${nested(16)}}`, 400, "invalid_json", null],
    ["just not too deep", `{"a":${nested(15)}}`, 400, "unknown_parameter", "a"],
    ["brackets in a string", `{"a":"\\"${"[".repeat(50)}"}`, 400, "unknown_parameter", "a"],
    ["a __proto__ key", `{"__proto__":{"model":"m"}}`, 400, "unknown_parameter", "__proto__"],
    ["unknown model", valid.replace("test-model", "nope"), 404, "model_not_found", "model"],
    [
      "a prompt over the context",
      JSON.stringify({ model: "test-model", messages: [{ role: "user", content: "x".repeat(5000) }] }),
      400,
      "context_length_exceeded",
      "messages",
    ],
    [
      "a prompt that just does not fit",
      JSON.stringify({ model: "test-model", messages: [{ role: "user", content: "x".repeat(1024) }] }),
      400,
      "context_length_exceeded",
      "messages",
    ],
    [
      "max_tokens over the rest",
      valid.replace(`"max_tokens":3`, `"max_tokens":1020`),
      400,
      "context_length_exceeded",
      "max_tokens",
    ],
    [
      "min_tokens over the rest",
      valid.replace(`"max_tokens":3`, `"min_tokens":1020`),
      400,
      "invalid_value",
      "min_tokens",
    ],
    [
      "token outside the vocabulary",
      valid.replace(`"max_tokens":3`, `"logit_bias":{"256":1}`),
      400,
      "invalid_value",
      "logit_bias.256",
    ],
    [
      "stop token outside the vocabulary",
      valid.replace(`"max_tokens":3`, `"stop_token_ids":[1,999]`),
      400,
      "invalid_value",
      "stop_token_ids[1]",
    ],
  ])("%s", async (_name, body, status, code, param) => {
    await expectError(raw(post(body)), status, code, param);
  });

  it("token ids outside the vocabulary name the entry", async () => {
    const body = JSON.stringify({
      model: "test-model",
      prompt: [
        [1, 2],
        [3, 256],
      ],
    });
    await expectError(raw(post(body, "", "/v1/completions")), 400, "invalid_value", "prompt[1][1]");
  });

  it("too large by its header: refused before it is sent", async () => {
    await expectError(
      raw([`POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100001\r\n\r\n`]),
      413,
      "payload_too_large",
    );
  });

  it("too large while it comes: refused, and the client gets to see why", async () => {
    const chunk = `186a0\r\n${"x".repeat(100_000)}\r\n`;
    await expectError(
      raw([
        `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`,
        ...Array<string>(40).fill(chunk),
      ]),
      413,
      "payload_too_large",
    );
  });

  it("slow: 408", async () => {
    const slow = raw([
      `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{`,
    ]);
    await expectError(slow, 408, "request_timeout");
    await until(() => test.frontend.inFlight === 0);
  });

  it("slow, with a deadline of its own", async () => {
    const head = `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\nx-stator-timeout-ms: 100\r\n\r\n{`;
    await expectError(raw([head]), 504, "deadline_exceeded");
  });
});

describe("headers", () => {
  const noBody = (headers: string, target = path) =>
    raw([`POST ${target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n${headers}\r\n{}`]);
  it("content type", async () => {
    await expectError(noBody(""), 415, "unsupported_media_type");
    await expectError(noBody("content-type: text/plain\r\n"), 415, "unsupported_media_type");
    await expectError(noBody("content-type: application/jsonx\r\n"), 415, "unsupported_media_type");
    await expectError(
      noBody("content-type: application/vnd.x+json; charset=utf-8\r\n"),
      400,
      "missing_parameter",
      "model",
    );
  });
  it("content encoding", async () => {
    await expectError(raw(post(valid, "content-encoding: gzip\r\n")), 415, "unsupported_media_type");
  });
  it("twice", async () => {
    await expectError(raw(post(valid, "content-type: text/plain\r\n")), 400, "invalid_header", "content-type");
    await expectError(raw(post(valid, "host: y\r\n")), 400, "invalid_header", "host");
    await expectError(raw(post(valid, "content-length: 5\r\n")), 400, "invalid_header");
  });
  it("length and chunks", async () => {
    await expectError(raw(post(valid, "transfer-encoding: chunked\r\n")), 400, "invalid_header");
  });
  it("no host", async () => {
    await expectError(raw(["GET /health HTTP/1.1\r\n\r\n"]), 400, "invalid_header", "host");
  });
  it("too large: 431", async () => {
    await expectError(
      raw([`GET /health HTTP/1.1\r\nhost: x\r\nx: ${"y".repeat(20_000)}\r\n\r\n`]),
      431,
      "headers_too_large",
    );
  });
  it("timeouts and worker ids", async () => {
    for (const value of ["0", "-1", "1.5", "abc", "1, 2"]) {
      await expectError(
        raw(post(valid, `x-stator-timeout-ms: ${value}\r\n`)),
        400,
        "invalid_header",
        "x-stator-timeout-ms",
      );
    }
    await expectError(raw(post(valid, "x-stator-worker-id: a b\r\n")), 400, "invalid_header", "x-stator-worker-id");
    await expectError(raw(post(valid, "x-stator-worker-id: w7\r\n")), 404, "worker_not_found", "x-stator-worker-id");
  });
  it("the client's request id comes back when it is sane", async () => {
    const idOf = async (id: string) => {
      const { headers, socket } = await raw(post(valid, `x-request-id: ${id}\r\n`));
      socket.destroy();
      return /x-request-id: (\S+)/i.exec(headers)?.[1];
    };
    expect(await idOf("abc-1.2:3")).toBe("abc-1.2:3");
    expect(await idOf("a b")).toMatch(/^[0-9a-z]{24}$/);
    expect(await idOf("x".repeat(129))).toMatch(/^[0-9a-z]{24}$/);
  });
  it("Expect: 100-continue, granted and refused", async () => {
    const socket = connect(test.port, "127.0.0.1");
    let received = "";
    socket.on("data", (data) => {
      received += data;
    });
    socket.write(
      post("", "expect: 100-continue\r\n").join("").replace("content-length: 0", `content-length: ${valid.length}`),
    );
    await until(() => received.startsWith("HTTP/1.1 100 Continue\r\n\r\n"));
    socket.write(valid);
    await until(() => received.includes("HTTP/1.1 200 OK"));
    socket.destroy();
    const head = `POST ${path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\n`;
    await expectError(raw([head]), 415, "unsupported_media_type");
    await expectError(raw(["GET /live HTTP/1.1\r\nhost: x\r\nexpect: tea\r\n\r\n"]), 400, "invalid_header", "expect");
  });
});

describe("routes", () => {
  it.each(["/", "/v1", "/v1/chat/completions/", "/v1/models/", "/v1//models", "/%2e%2e/etc", "/v1/chat/Completions"])(
    "%s is unknown",
    async (target) => {
      await expectError(raw([`GET ${target} HTTP/1.1\r\nhost: x\r\n\r\n`]), 404, "route_not_found");
    },
  );
  it("methods", async () => {
    const answer = raw([`GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`]);
    await expectError(answer, 405, "method_not_allowed");
    expect((await answer).headers).toMatch(/allow: POST, OPTIONS/i);
    await expectError(raw(post("{}", "", "/v1/models")), 405, "method_not_allowed");
    await expectError(raw(["DELETE /health HTTP/1.1\r\nhost: x\r\n\r\n"]), 405, "method_not_allowed");
    expect((await fetch(`${test.url}${path}`, { method: "OPTIONS" })).status).toBe(204);
    const head = await fetch(`${test.url}/health`, { method: "HEAD" });
    expect([head.status, await head.text()]).toEqual([200, ""]);
  });
  it("queries and absolute forms", async () => {
    expect((await fetch(`${test.url}/v1/models?limit=5`)).status).toBe(200);
    const { status, socket } = await raw(["GET http://x/live HTTP/1.1\r\nhost: x\r\n\r\n"]);
    socket.destroy();
    expect(status).toBe(200);
  });
  it("a model id that does not decode", async () => {
    await expectError(raw(["GET /v1/models/%ff HTTP/1.1\r\nhost: x\r\n\r\n"]), 404, "model_not_found", "model");
  });
});

describe("connections", () => {
  it("broken HTTP", async () => {
    await expectError(raw(["this is not HTTP\r\n\r\n"]), 400, "invalid_header");
    await expectError(raw([Buffer.from([0x16, 0x03, 0x01, 0x00, 0x05, 1, 2, 3])]), 400, "invalid_header");
    await expectError(raw(["GET /live HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n"]), 400, "invalid_header");
    await expectError(
      raw([
        `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n`,
      ]),
      400,
      "invalid_header",
    );
  });

  it("slow headers are cut", async () => {
    await expectError(raw(["GET /live HTTP/1.1\r\nhost: x\r\nx: "]), 408, "request_timeout");
  });

  it("nothing at all is cut too", async () => {
    const socket = connect(test.port, "127.0.0.1");
    const closed = new Promise((resolve) => socket.once("close", resolve));
    socket.on("error", () => {}).resume();
    await closed;
  });

  it("half a request, then FIN", async () => {
    await expectError(raw([`POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-le`], { end: true }), 400, "invalid_header");
  });

  it("two requests in one packet are answered in order, streams too", async () => {
    const streamed = valid.replace("{", `{"stream":true,`);
    const socket = connect(test.port, "127.0.0.1");
    let received = "";
    socket.on("data", (data) => {
      received += data;
    });
    socket.write(
      [...post(streamed), ...post(streamed.replace("hello", "world")), "GET /live HTTP/1.1\r\nhost: x\r\n\r\n"].join(
        "",
      ),
    );
    await until(() => received.includes(`{"status":"live"}`));
    socket.destroy();
    expect(received.match(/HTTP\/1.1 200 OK/g)?.length).toBe(3);
    const contents = [...received.matchAll(/"content":"([a-z]+)"/g)].map((match) => match[1]).join("|");
    expect(contents).toBe("hel|wor");
  });

  it("HTTP/1.0 gets its stream without chunks", async () => {
    const streamed = valid.replace("{", `{"stream":true,`);
    const socket = connect(test.port, "127.0.0.1");
    let received = "";
    socket.on("data", (data) => {
      received += data;
    });
    const closed = new Promise((resolve) => socket.once("close", resolve));
    socket.write(
      `POST ${path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: ${streamed.length}\r\n\r\n${streamed}`,
    );
    await closed;
    expect(framesOf(received.slice(received.indexOf("\r\n\r\n") + 4)).at(-1)).toBe("[DONE]");
  });

  it("a connection is used again after a stream and after an error", async () => {
    const socket = connect(test.port, "127.0.0.1");
    let received = "";
    socket.on("data", (data) => {
      received += data;
    });
    for (const [body, end] of [
      [valid.replace("{", `{"stream":true,`), "data: [DONE]\n\n\r\n0\r\n\r\n"],
      ["{", "invalid_json"],
      [valid, `"hel"`],
    ] as const) {
      received = "";
      for (const part of post(body)) socket.write(part);
      await until(() => received.includes(end));
    }
    socket.destroy();
  });

  it("after all that the server is healthy", async () => {
    await expectHealthy();
    await until(() => test.frontend.inFlight === 0 && test.activeCalls() === 0);
  });
});

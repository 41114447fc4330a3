import { trace } from "@opentelemetry/api";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { afterAll, beforeAll, expect, it } from "vitest";
import { echo, startTestFrontend, type TestFrontend, until } from "../test-frontend.contract.ts";

const path = "/v1/chat/completions";
const secret = "attack at dawn";
const chat = { model: "test-model", messages: [{ role: "user", content: secret }], max_tokens: 4 };
const exporter = new InMemorySpanExporter();
const lines: Record<string, unknown>[] = [];
const traceparents: (string | undefined)[] = [];
let test: TestFrontend;

beforeAll(async () => {
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  test = await startTestFrontend({
    onLog: (line) => lines.push(line),
    script: (request, call, workerId) => {
      traceparents.push(call.traceparent);
      return echo(request, call, workerId);
    },
  });
});
afterAll(async () => {
  await test.close();
  trace.disable();
});

it("one log line per request, with its id and without its text", async () => {
  lines.length = 0;
  await (
    await test.post(path, { ...chat, stream: true }, { "x-request-id": "mine", authorization: "Bearer key" })
  ).text();
  await (await test.post(path, { ...chat, model: "nope" })).text();
  await until(() => lines.length === 2);
  expect(lines[0]).toMatchObject({
    requestId: "mine",
    endpoint: "chat",
    model: "test-model",
    status: 200,
    stream: true,
    promptTokens: secret.length,
    completionTokens: 4,
  });
  expect(lines[0]?.ttftMs).toBeGreaterThan(0);
  expect(lines[1]).toMatchObject({ status: 404, error: "model_not_found" });
  expect(JSON.stringify(lines)).not.toMatch(/attack|Bearer/);
});

it("spans hang together from the client's to the worker's", async () => {
  exporter.reset();
  traceparents.length = 0;
  const traceId = "0af7651916cd43dd8448eb211c80319c";
  await (await test.post(path, chat, { traceparent: `00-${traceId}-b7ad6b7169203331-01` })).text();
  await until(() => exporter.getFinishedSpans().length === 3);
  const spans = exporter.getFinishedSpans();
  expect(spans.map(({ name }) => name)).toEqual(["preprocess", "generate", "POST /v1/chat/completions"]);
  expect(spans.every((span) => span.spanContext().traceId === traceId)).toBe(true);
  const generate = spans[1]!;
  expect(traceparents).toEqual([`00-${traceId}-${generate.spanContext().spanId}-01`]);
  expect(generate.attributes).toMatchObject({ "stator.prompt_tokens": secret.length });
});

it("unknown failures are opaque to the client and told in the log", async () => {
  lines.length = 0;
  const lookup = test.catalog.lookup;
  test.catalog.lookup = () => {
    throw new TypeError("secret detail");
  };
  const response = await test.post(path, chat);
  test.catalog.lookup = lookup;
  expect(response.status).toBe(500);
  const text = await response.text();
  expect(text).not.toContain("secret detail");
  const id = /err_[0-9a-z]+/.exec(text)?.[0];
  await until(() => lines.length === 2);
  expect(lines[0]).toMatchObject({ errorId: id, err: { message: "secret detail" } });
});

import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StatorServer, until } from "../harness/stator-process.ts";

interface Span {
  readonly name: string;
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly service: string;
}

describe("tracing", () => {
  const spans: Span[] = [];
  let collector: Server;
  let server: StatorServer;

  beforeAll(async () => {
    collector = createServer((request, response) => {
      const parts: Buffer[] = [];
      request.on("data", (part: Buffer) => parts.push(part));
      request.on("end", () => {
        spans.push(...spansOf(JSON.parse(Buffer.concat(parts).toString()) as OtlpBody));
        response.writeHead(200, { "content-type": "application/json" }).end("{}");
      });
    });
    await new Promise<void>((resolve) => collector.listen(0, "127.0.0.1", resolve));
    const endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
    server = await StatorServer.serve([
      "--engine",
      "echo",
      "--workers",
      "1",
      "--set",
      `tracing.otlpEndpoint=${endpoint}`,
    ]);
  });
  afterAll(async () => {
    await server?.stop();
    collector?.close();
  });

  it("has one trace from the client's span through HTTP and the frontend to the engine in its worker", async () => {
    const traceId = "0af7651916cd43dd8448eb211c80319c";
    const answer = await server.post(
      "/v1/chat/completions",
      { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 3 },
      { headers: { traceparent: `00-${traceId}-b7ad6b7169203331-01` } },
    );
    expect(answer.status).toBe(200);
    await server.stop(); // flushes what is left
    await until(
      () => spans.filter((span) => span.traceId === traceId).length >= 4,
      10_000,
      () => JSON.stringify(spans),
    );
    const own = spans.filter((span) => span.traceId === traceId);
    const parentOf = (span: Span) => own.find(({ spanId }) => spanId === span.parentSpanId);
    const engine = own.find(({ name }) => name === "engine.generate")!;
    expect(engine.service).toBe("stator-worker");
    const path: string[] = [];
    for (let span: Span | undefined = engine; span !== undefined; span = parentOf(span)) path.push(span.name);
    expect(path).toEqual(["engine.generate", "generate", "POST /v1/chat/completions"]);
    expect(own.find(({ name }) => name === "POST /v1/chat/completions")!.parentSpanId).toBe("b7ad6b7169203331");
    expect(own.some(({ name }) => name === "preprocess")).toBe(true);
  });
});

interface OtlpBody {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly { key: string; value: { stringValue?: string } }[] };
    readonly scopeSpans: readonly { readonly spans: readonly Omit<Span, "service">[] }[];
  }[];
}

function spansOf({ resourceSpans }: OtlpBody): Span[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) => {
    const service = resource.attributes.find(({ key }) => key === "service.name")?.value.stringValue ?? "";
    return scopeSpans.flatMap((scope) => scope.spans.map((span) => ({ ...span, service })));
  });
}

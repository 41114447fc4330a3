import { createServer, type ServerResponse } from "node:http";

/*
 * The baseline: a bare node:http server that writes the SSE chunks of Stator's answer and does nothing else: no
 * validation, no template, no worker behind it. Argument: tokens per second and stream (0 = all at once).
 */

const tokenRate = Number(process.argv[2] ?? 0);
const chunk =
  'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1764400000,"model":"stator-echo","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}\n\n';
const usage = (tokens: number): string =>
  `{"prompt_tokens":1,"completion_tokens":${tokens},"total_tokens":${tokens + 1},"prompt_tokens_details":{"cached_tokens":0}}`;

interface Stream {
  readonly response: ServerResponse;
  readonly total: number;
  left: number;
  dueAt: number;
}

const streams = new Set<Stream>();
const periodMs = tokenRate > 0 ? 1000 / tokenRate : 0;
if (periodMs > 0) {
  setInterval(() => {
    const now = performance.now();
    for (const stream of streams) {
      if (stream.dueAt > now) continue;
      stream.response.write(chunk);
      stream.dueAt += periodMs;
      if (--stream.left === 0) finish(stream);
    }
  }, 5);
}

function finish({ response, total }: Stream): void {
  for (const stream of streams) if (stream.response === response) streams.delete(stream);
  response.end(`data: {"choices":[],"usage":${usage(total)}}\n\ndata: [DONE]\n\n`);
}

const server = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on("data", (part: Buffer) => parts.push(part));
  request.on("end", () => {
    const { stream, max_tokens: total } = JSON.parse(Buffer.concat(parts).toString()) as {
      stream?: boolean;
      max_tokens: number;
    };
    if (!stream) {
      const body = `{"id":"chatcmpl-0","object":"chat.completion","created":1764400000,"model":"stator-echo","choices":[{"index":0,"message":{"role":"assistant","content":"${"x".repeat(total)}"},"logprobs":null,"finish_reason":"length"}],"usage":${usage(total)}}`;
      response.writeHead(200, { "content-type": "application/json", "content-length": body.length }).end(body);
      return;
    }
    response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
    if (periodMs > 0) {
      streams.add({ response, total, left: total, dueAt: performance.now() + periodMs });
      return;
    }
    response.cork();
    for (let i = 0; i < total; i++) response.write(chunk);
    finish({ response, total, left: 0, dueAt: 0 });
    response.uncork();
  });
});
server.listen(0, "127.0.0.1", () => process.stdout.write(`${(server.address() as { port: number }).port}\n`));

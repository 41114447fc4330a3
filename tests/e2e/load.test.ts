import { readFileSync } from "node:fs";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readStream } from "../harness/sse.ts";
import { StatorServer, until } from "../harness/stator-process.ts";

const chat = "/v1/chat/completions";
const body = (content: string, extra: Record<string, unknown> = {}) => ({
  model: "stator-echo",
  messages: [{ role: "user", content }],
  ...extra,
});
const rssBytes = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]) * 1024;

describe("load on two echo workers", () => {
  let server: StatorServer;
  let promptOf: (content: string) => string;

  beforeAll(async () => {
    server = await StatorServer.serve([
      "--engine",
      "echo",
      "--workers",
      "2",
      "--set",
      "http.slowReaderTimeoutMs=3000",
      "--context-length",
      "16777216",
    ]);
    // The template's text around the content, learnt from one answer of exactly one prompt.
    const probe = await (await server.post(chat, body("@", { max_tokens: 1 }))).json();
    const length = (probe as { usage: { prompt_tokens: number } }).usage.prompt_tokens;
    const whole = await (await server.post(chat, body("@", { max_tokens: length }))).json();
    const template = (whole as { choices: { message: { content: string } }[] }).choices[0]!.message.content;
    expect(template.split("@")).toHaveLength(2);
    promptOf = (content) => template.replace("@", () => content);
  });
  afterAll(() => server?.stop());

  it("completes 200 concurrent streams, each with its own text", async () => {
    const streams = await Promise.all(
      Array.from({ length: 200 }, async (_, i) => {
        const content = `stream number ${i}, ${"€äx".repeat(i % 7)}`;
        const stream = await readStream(
          await server.post(
            chat,
            body(content, { max_tokens: 300, stream: true, stream_options: { include_usage: true } }),
          ),
        );
        return { content, stream };
      }),
    );
    for (const { content, stream } of streams) {
      expect(stream.done).toBe(true);
      expect(stream.finishReasons).toEqual(["length"]);
      const bytes = Buffer.from(expectedBytes(promptOf(content), 300));
      expect(stream.text).toBe(bytes.toString("utf8"));
      expect(stream.chunks.at(-1)!.usage!.completion_tokens).toBe(300);
    }
  });

  it("keeps slow readers from growing memory or delaying others, and cuts the one that stops reading", async () => {
    const before = rssBytes(server.pid);
    const slow = await Promise.all(Array.from({ length: 20 }, () => slowStream(server.url, 1_000)));
    const startedAt = performance.now();
    const others = await Promise.all(
      Array.from({ length: 50 }, async (_, i) =>
        readStream(await server.post(chat, body(`other ${i}`, { max_tokens: 200, stream: true }))),
      ),
    );
    expect(others.every(({ done, error }) => done && !error)).toBe(true);
    // The slow readers alone would take hours.
    expect(performance.now() - startedAt).toBeLessThan(60_000);
    // Every slow stream would be gigabytes.
    expect(rssBytes(server.pid) - before).toBeLessThan(150e6);
    for (const reader of slow) reader.stop();

    const stopped = await slowStream(server.url, 0);
    const metrics = async () => (await fetch(`${server.url}/metrics`)).text();
    await until(
      async () => (await metrics()).includes('code="slow_reader"'),
      60_000,
      () => "nobody was cut",
    );
    await until(
      async () => (await server.inFlight()) === 0,
      10_000,
      () => "in flight is not 0",
    );
    stopped.stop();
  }, 180_000);

  it("stops the engine within a second when the client leaves", async () => {
    const controller = new AbortController();
    const response = await server.post(chat, body("x", { max_tokens: 1_000_000, stream: true }), {
      signal: controller.signal,
    });
    expect(response.status).toBe(200);
    controller.abort();
    await until(
      async () =>
        (
          (await (await fetch(`${server.adminUrl}/workers`)).json()) as { workers: { load: { requests: number } }[] }
        ).workers.every(({ load }) => load.requests === 0),
      1_500,
      () => "a worker is still booked",
    );
  });
});

/** The bytes of the echoed text; a cut inside a character shows as U+FFFD, as in any decoder. */
function expectedBytes(prompt: string, tokens: number): Uint8Array {
  const once = Buffer.from(prompt);
  const many = Buffer.alloc(Math.ceil(tokens / once.length) * once.length);
  for (let at = 0; at < many.length; at += once.length) once.copy(many, at);
  return many.subarray(0, tokens);
}

/** A reader that takes `bytesPerSecond` (0 = it stops after the head). The logprobs fill the kernel's buffers soon. */
function slowStream(url: string, bytesPerSecond: number): Promise<{ stop(): void }> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(`${url}${chat}`, { method: "POST", headers: { "content-type": "application/json" } });
    request.once("error", reject);
    request.once("response", (response: IncomingMessage) => {
      response.on("error", () => {});
      request.on("error", () => {});
      response.pause();
      const timer = bytesPerSecond > 0 ? setInterval(() => response.read(bytesPerSecond / 10), 100) : undefined;
      resolve({
        stop: () => {
          clearInterval(timer);
          request.destroy();
        },
      });
    });
    const options = { max_tokens: 16_000_000, stream: true, logprobs: true, top_logprobs: 20 };
    request.end(JSON.stringify(body("slow", options)));
  });
}

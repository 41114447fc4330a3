import { getEventListeners } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import type { TraceRequest } from "../traces/trace-request.ts";
import { BytePrompts } from "./byte-prompts.ts";
import { reportOf } from "./load-report.ts";
import { runLoad } from "./load-run.ts";
import { OpenAiClient, type RequestRecord } from "./openai-client.ts";
import { PromptMaker, sampleOf } from "./prompt-maker.ts";

const request = (change: Partial<TraceRequest>): TraceRequest => ({
  arrivalMs: 0,
  inputTokens: 32,
  outputTokens: 3,
  blockIds: [],
  blockTokens: 16,
  ...change,
});

describe("prompts", () => {
  const wordsOf = (text: string): string[] => text.split(" ");

  test("share text exactly where the trace shares blocks, and have the wanted length", () => {
    const maker = new PromptMaker(1, 7);
    const a = wordsOf(maker.textOf(request({ inputTokens: 40, blockIds: [1, 2, 3] })));
    const b = wordsOf(maker.textOf(request({ inputTokens: 48, blockIds: [1, 2, 9] })));
    expect([a.length, b.length]).toEqual([40, 48]);
    expect(a.slice(0, 32)).toEqual(b.slice(0, 32));
    expect(a.slice(32)).not.toEqual(b.slice(32, 40));
    const [c, d] = [maker.textOf(request({})), maker.textOf(request({}))];
    expect(c).not.toBe(d);
    expect(wordsOf(new PromptMaker(5, 7).textOf(request({ inputTokens: 100 }))).length).toBe(20);
    expect(wordsOf(sampleOf(12)).length).toBe(12);
  });
});

describe("prompts for tokens that are bytes", () => {
  test("are as long as asked, share exactly what the trace shares, and differ from the first bytes of a block on", () => {
    const prompts = new BytePrompts(7);
    const of = (inputTokens: number, blockIds: number[]) =>
      prompts.textOf(request({ inputTokens, blockIds, blockTokens: 64 }));
    const [a, b, c] = [of(150, [1, 2, 3]), of(192, [1, 2, 4]), of(170, [1, 2, 3])];
    expect([a, b, c].map((it) => Buffer.byteLength(it))).toEqual([150, 192, 170]);
    expect(b.slice(0, 128)).toBe(a.slice(0, 128));
    expect(b.slice(128, 144)).not.toBe(a.slice(128, 144));
    expect(c.startsWith(a)).toBe(true);
    expect(of(100, [])).not.toBe(of(100, []));
    expect(new BytePrompts(8).textOf(request({ blockIds: [1] }))).not.toBe(of(32, [1]));
    expect(JSON.stringify(b).length).toBe(194);
  });

  test("with a seed of any size other blocks have other text", () => {
    for (const seed of [0, Date.UTC(2026, 0), Number.MAX_SAFE_INTEGER]) {
      for (const prompts of [new PromptMaker(1, seed), new BytePrompts(seed)]) {
        const texts = [1, 2, 3].map((id) => prompts.textOf(request({ blockIds: [id, 9] })));
        expect(new Set(texts).size, String(seed)).toBe(3);
      }
    }
  });
});

describe("a run", () => {
  const servers: Server[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) {
      server.closeAllConnections();
      server.close();
    }
  });

  /** A server that answers as `answer` does, and what it saw: prompts, and how many at once. */
  async function serve(answer: (response: ServerResponse, prompt: string) => Promise<void> | void) {
    const seen = { prompts: [] as string[], atOnce: 0, most: 0 };
    const onRequest = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
      let text = "";
      for await (const part of incoming) text += String(part);
      const { messages } = JSON.parse(text) as { messages: { content: string }[] };
      seen.prompts.push(messages[0]!.content);
      seen.most = Math.max(seen.most, ++seen.atOnce);
      await answer(response, messages[0]!.content);
      seen.atOnce--;
    };
    const server = createServer((incoming, response) => void onRequest(incoming, response));
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    return { url, seen };
  }

  const frames = (...frames: unknown[]): string => frames.map((it) => `data: ${JSON.stringify(it)}\n\n`).join("");
  const text = (content: string) => ({ choices: [{ delta: { content } }] });
  const usage = {
    choices: [],
    usage: { prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } },
  };
  const good = (response: ServerResponse): void => {
    response.writeHead(200);
    response.end(`${frames(text("a"), text("b"), usage)}data: [DONE]\n\n`);
  };

  async function run(url: string, requests: TraceRequest[], more: { loop?: "schedule"; concurrency?: number } = {}) {
    const { signal } = new AbortController();
    const client = new OpenAiClient({ url, model: "m", endpoint: "chat", ignoreEos: true, timeoutMs: 2_000 });
    const records = await runLoad({
      requests,
      loop: more.loop ?? "closed",
      concurrency: more.concurrency ?? 4,
      client,
      prompts: new PromptMaker(1, 1),
      signal,
    });
    await client.close();
    expect(getEventListeners(signal, "abort")).toEqual([]);
    return records;
  }

  test("keeps to the concurrency and reads usage", async () => {
    const { url, seen } = await serve(async (response) => {
      await new Promise((resolve) => setTimeout(resolve, 20));
      good(response);
    });
    const records = await run(
      url,
      Array.from({ length: 20 }, () => request({})),
      { concurrency: 3 },
    );
    expect(seen.most).toBe(3);
    const report = reportOf(records, {});
    expect(report).toMatchObject({
      num_requests: 20,
      completed_requests: 20,
      total_input_tokens: 180,
      total_output_tokens: 40,
      schedule_kept: true,
    });
    expect(report.prefix_cache_reused_ratio).toBeCloseTo(4 / 9, 10);
    expect(report.goodput_ratio).toBeUndefined();
  });

  test("sends a session's turns one after the other", async () => {
    let running = 0;
    const { url } = await serve(async (response) => {
      expect(++running).toBe(1);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running--;
      good(response);
    });
    const turns = [0, 1, 2].map((turn) => request({ session: "s", ...(turn > 0 ? { delayMs: 5 } : {}) }));
    expect((await run(url, turns)).map(({ error }) => error)).toEqual([undefined, undefined, undefined]);
  });

  test("keeps the schedule of arrivals, whatever their order in the source", async () => {
    const { url } = await serve(good);
    const records = await run(
      url,
      [request({ arrivalMs: 120 }), request({ arrivalMs: 0 }), request({ arrivalMs: 60 })],
      {
        loop: "schedule",
      },
    );
    const first = Math.min(...records.map(({ startedAtMs }) => startedAtMs));
    const offsets = records.map(({ startedAtMs }) => startedAtMs - first).sort((a, b) => a - b);
    expect(offsets[1]).toBeGreaterThan(30);
    expect(offsets[2]! - offsets[1]!).toBeGreaterThan(30);
  });

  test("counts every kind of failure by its name", async () => {
    let turn = 0;
    const answers: ((response: ServerResponse) => void)[] = [
      (response) => response.writeHead(503).end('{"error":{"code":"overloaded"}}'),
      (response) =>
        response.writeHead(200).end(`${frames(text("a"), { error: { code: "worker_lost" } })}data: [DONE]\n\n`),
      (response) => response.writeHead(200).end(frames(text("a"))),
      (response) => response.destroy(),
      (response) => response.writeHead(500).end("<html>"),
      () => {},
    ];
    const { url } = await serve((response) => answers[turn++]!(response));
    const records = await run(
      url,
      answers.map(() => request({})),
      { concurrency: 1 },
    );
    expect(records.map(({ error }) => error)).toEqual([
      "503 overloaded",
      "worker_lost",
      "no [DONE]",
      "UND_ERR_SOCKET",
      "500",
      "timeout",
    ]);
    expect(reportOf(records, {})).toMatchObject({ completed_requests: 0, failed_requests: 6, ttft: null });
  });
});

test("goodput counts what meets every objective; a late schedule is said", () => {
  const record = (ttftMs: number, e2eMs: number, lateMs = 0): RequestRecord => ({
    startedAtMs: 0,
    lateMs,
    ttftMs,
    e2eMs,
    gapsMs: [],
    promptTokens: 1,
    completionTokens: 11,
    cachedTokens: 0,
    error: undefined,
  });
  const report = reportOf([record(50, 150), record(50, 350), record(500, 600), record(50, 1_000)], {
    ttftMs: 100,
    tpotMs: 20,
  });
  expect(report.goodput_ratio).toBe(0.25);
  expect(report.goodput_rps).toBeCloseTo(1, 10);
  expect(reportOf([record(1, 2, 300)], {}).schedule_kept).toBe(false);
});

import fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest } from "../../protocol/generate.ts";
import {
  bytes,
  finish,
  framesOf,
  sendDelta,
  startTestFrontend,
  type TestFrontend,
  type TestOptions,
  testCard,
  until,
  type WorkerScript,
} from "../test-frontend.contract.ts";

let running: TestFrontend | undefined;
afterEach(async () => {
  await running?.close();
  running = undefined;
});

const resuming = { capabilities: { ...testCard.capabilities, resume: true } };
const start = async (options: TestOptions): Promise<TestFrontend> => {
  await running?.close();
  running = await startTestFrontend({ card: resuming, ...options });
  return running;
};

const path = "/v1/chat/completions";
const chat = { model: "test-model", messages: [{ role: "user", content: "hello" }] };
const none = new Uint32Array(0);

const idle = ({ router, frontend, activeCalls }: TestFrontend): boolean =>
  router.book.requests("w0") + router.book.requests("w1") + frontend.inFlight + activeCalls() === 0;

/** Workers that say `text`, token by token, each going on where the request says; `losses`: tokens after which one is lost. */
class Speakers {
  readonly requests: GenerateRequest[] = [];
  readonly owners: string[] = [];
  readonly #text: Uint32Array;
  readonly #losses: number[];
  readonly #error: () => StatorError;

  constructor(text: string, losses: readonly number[], error = () => new StatorError("worker_lost", "gone")) {
    this.#text = bytes(text);
    this.#losses = [...losses];
    this.#error = error;
  }

  readonly script: WorkerScript = async (request, call, workerId) => {
    this.requests.push(request);
    this.owners.push(workerId);
    call.accept(0);
    const { generated = none, topLogprobs } = request;
    expect(generated).toEqual(this.#text.subarray(0, generated.length));
    const end = Math.min(this.#text.length, request.stop.maxTokens);
    const loss = this.#losses.shift();
    for (let at = generated.length; at < end && !call.signal.aborted; at++) {
      if (at === loss) await this.#lose();
      const top = Array.from({ length: topLogprobs ?? 0 }, (_, n) => ({ token: n + 65, logprob: -n - at }));
      const logprobs = topLogprobs === undefined ? {} : { logprobs: [{ logprob: -at, top }] };
      await sendDelta(call, { tokens: this.#text.slice(at, at + 1), ...logprobs });
    }
    if (end === loss) await this.#lose();
    const reason = end < this.#text.length ? "length" : "stop";
    await sendDelta(call, { tokens: none, finish: finish(request, end, reason) });
  };

  /** What was sent has been delivered by then. */
  async #lose(): Promise<never> {
    for (let turns = 0; turns < 3; turns++) await new Promise((resolve) => setImmediate(resolve));
    throw this.#error();
  }
}

interface Answered {
  readonly content: string;
  readonly finish: string | undefined;
  readonly logprobs: unknown[];
  readonly usage: unknown;
  readonly error: string | undefined;
  readonly worker: string | null;
}

/** A streamed answer, whole; `choice`: of several. */
async function streamed(test: TestFrontend, body: object, headers = {}, choice = 0): Promise<Answered> {
  const whole = { ...chat, ...body, stream: true, stream_options: { include_usage: true } };
  const response = await test.post(path, whole, headers);
  const answered = { content: "", finish: undefined as string | undefined, logprobs: [] as unknown[] };
  let usage: unknown;
  let error: string | undefined;
  const frames = framesOf(await response.text());
  expect(frames.at(-1)).toBe("[DONE]");
  for (const frame of frames.slice(0, -1)) {
    const chunk = JSON.parse(frame);
    error ??= chunk.error?.code;
    usage = chunk.usage ?? usage;
    for (const { index, delta, finish_reason: reason, logprobs } of chunk.choices ?? []) {
      if (index !== choice) continue;
      answered.content += delta.content ?? "";
      answered.logprobs.push(...(logprobs?.content ?? []));
      answered.finish = reason ?? answered.finish;
    }
  }
  return { ...answered, usage, error, worker: response.headers.get("x-stator-worker-id") };
}

async function metric(test: TestFrontend, name: string): Promise<number> {
  const text = await (await fetch(`${test.url}/metrics`)).text();
  const line = text.split("\n").find((it) => it.startsWith(`stator_frontend_${name} `));
  return line === undefined ? 0 : Number(line.split(" ").at(-1));
}

/** The answer with the worker lost behind each token, compared with the undisturbed one. */
async function equalAtEveryLoss(text: string, body: object, sent: number): Promise<void> {
  const undisturbed = await streamed(await start({ script: new Speakers(text, []).script }), body);
  expect(undisturbed.error).toBeUndefined();
  for (let loss = 0; loss <= sent; loss++) {
    const speakers = new Speakers(text, [loss]);
    const test = await start({ script: speakers.script });
    const disturbed = await streamed(test, body);
    // Before the first token nothing was promised: the answer is the second worker's.
    const worker = loss === 0 ? "w1" : "w0";
    expect(disturbed, `lost behind ${loss} tokens`).toEqual({ ...undisturbed, worker });
    expect(speakers.owners).toEqual(["w0", "w1"]);
    expect(speakers.requests[1]!.generated?.length ?? 0).toBe(loss);
    await until(() => idle(test));
  }
}

describe("a worker that is lost mid-stream", () => {
  it("is not seen by the client, wherever it happens: in the middle of a character", async () => {
    await equalAtEveryLoss("aé€😀z", {}, 10);
  });

  it("... in the middle of a stop string, whether it becomes one or not", async () => {
    await equalAtEveryLoss("aSTbSTOPc", { stop: ["STOP"] }, 7);
    await equalAtEveryLoss("aSTbSTO", { stop: ["STOP"] }, 6);
  });

  it("... between tokens with logprobs", async () => {
    await equalAtEveryLoss("abcd", { logprobs: true, top_logprobs: 2 }, 3);
  });

  it("... at the limit of tokens, of which the last one is known to be the last", async () => {
    await equalAtEveryLoss("abcdefgh", { max_tokens: 4 }, 3);
    const speakers = new Speakers("abcdefgh", [4]);
    const test = await start({ script: speakers.script });
    expect(await streamed(test, { max_tokens: 4 })).toMatchObject({
      content: "abcd",
      finish: "length",
      usage: { completion_tokens: 4 },
      error: undefined,
    });
    expect(speakers.owners).toEqual(["w0"]);
    await until(() => idle(test));
  });

  it("... again and again, in a whole answer, too", async () => {
    const text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.";
    const length = Buffer.byteLength(text);
    const losses = fc.array(fc.nat(length - 1), { minLength: 1, maxLength: 3 }).map((all) => all.sort((a, b) => a - b));
    await fc.assert(
      fc.asyncProperty(losses, fc.boolean(), async (at, stream) => {
        const test = await start({ script: new Speakers(text, at).script });
        const body = { max_tokens: 500 };
        if (stream) {
          expect(await streamed(test, body)).toMatchObject({ content: text, finish: "stop", error: undefined });
        } else {
          expect(await (await test.post(path, { ...chat, ...body })).json()).toMatchObject({
            choices: [{ message: { content: text }, finish_reason: "stop" }],
            usage: { prompt_tokens: 5, completion_tokens: length, prompt_tokens_details: { cached_tokens: 3 } },
          });
        }
        await until(() => idle(test));
      }),
      { numRuns: 25 },
    );
  });

  it("takes everything along that shapes the text, and leaves out what was not there", async () => {
    const speakers = new Speakers('{"a":1}', [3]);
    const test = await start({ script: speakers.script });
    const shape = {
      temperature: 0.7,
      presence_penalty: 0.5,
      min_tokens: 2,
      max_tokens: 50,
      response_format: { type: "json_object" },
    };
    expect((await streamed(test, { ...shape, seed: 7 }, { "x-stator-timeout-ms": "20000" })).content).toBe('{"a":1}');
    const [first, second] = speakers.requests;
    expect(second).toEqual({
      ...first,
      generated: bytes('{"a'),
      requestId: `${first!.requestId}.2`,
      timeoutMs: expect.any(Number),
    });
    expect(second!.sampling.seed).toBe(7);
    expect(second!.timeoutMs).toBeLessThanOrEqual(first!.timeoutMs);
    const unseeded = new Speakers("abc", [1]);
    await streamed(await start({ script: unseeded.script }), {});
    expect(unseeded.requests.map(({ sampling }) => sampling.seed)).toEqual([undefined, undefined]);
  });

  it("moves each choice and each prompt for itself", async () => {
    const speakers = new Speakers("abcdef", [2, 5]);
    const test = await start({ script: speakers.script });
    for (const choice of [0, 1]) {
      const answer = await streamed(test, { n: 2 }, {}, choice);
      expect(answer).toMatchObject({ content: "abcdef", error: undefined, usage: { completion_tokens: 12 } });
    }
    const batch = new Speakers("abcdef", [1, 3, 5]);
    const again = await start({ script: batch.script });
    const response = await again.post("/v1/completions", { model: "test-model", prompt: ["x", "y", "z"] });
    const { choices } = (await response.json()) as { choices: { text: string }[] };
    expect(choices.map(({ text }) => text)).toEqual(["abcdef", "abcdef", "abcdef"]);
    expect(batch.owners).toHaveLength(6);
    await until(() => idle(again));
  });

  it("may also say itself that it has to go", async () => {
    const speakers = new Speakers("abcdef", [2], () => new StatorError("draining", "shutting down"));
    const test = await start({ script: speakers.script });
    expect(await streamed(test, {})).toMatchObject({ content: "abcdef", error: undefined, worker: "w0" });
  });

  it("is logged and counted", async () => {
    const lines: Record<string, unknown>[] = [];
    const test = await start({ script: new Speakers("abcdef", [0, 2]).script, onLog: (line) => lines.push(line) });
    await streamed(test, {});
    const moves = lines.filter(({ msg }) => msg === "sequence migrated");
    expect(moves).toMatchObject([
      { type: "new_request", from: "w0", to: "w1", reason: "worker_lost", generated: 0 },
      { type: "ongoing", from: "w1", to: "w0", reason: "worker_lost", generated: 2 },
    ]);
    expect(await metric(test, `migrations_total{type="new_request"}`)).toBe(1);
    expect(await metric(test, `migrations_total{type="ongoing"}`)).toBe(1);
    const tokens = (worker: string) =>
      metric(test, `worker_tokens_total{model="test-model",worker="${worker}",kind="completion"}`);
    expect([await tokens("w0"), await tokens("w1")]).toEqual([4, 2]);
  });

  it("loses nothing for a reader that is behind", async () => {
    const part = "x".repeat(4096);
    const parts = 200;
    let calls = 0;
    const test = await start({
      card: { ...resuming, contextLength: 1e8 },
      options: { http: { slowReaderBufferBytes: 32 * 1024 }, migration: { maxTokens: 1e8 } },
      script: async (request, call) => {
        call.accept(0);
        const lostAt = ++calls === 1 ? 100 : parts;
        for (let i = (request.generated?.length ?? 0) / part.length; i < parts && !call.signal.aborted; i++) {
          if (i === lostAt) throw new StatorError("worker_lost", "gone");
          await sendDelta(call, { tokens: bytes(part) });
        }
        await sendDelta(call, { tokens: none, finish: finish(request, parts * part.length, "stop") });
      },
    });
    const response = await test.post(path, { ...chat, stream: true, max_tokens: 1e7 });
    let received = 0;
    let text = "";
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      text += Buffer.from(chunk).toString("latin1");
      const whole = text.lastIndexOf("\n\n");
      if (whole < 0) continue;
      received += [...text.slice(0, whole).matchAll(/x{10,}/g)].reduce((sum, [xs]) => sum + xs.length, 0);
      text = text.slice(whole);
    }
    expect(received).toBe(parts * part.length);
    expect(calls).toBe(2);
    await until(() => idle(test));
  });
});

describe("a sequence that cannot move", () => {
  const lostAfter = async (options: TestOptions & { losses: number[] }, headers = {}, body: object = {}) => {
    const speakers = new Speakers("abcdef", options.losses);
    const test = await start({ ...options, script: speakers.script });
    const answer = await streamed(test, body, headers);
    await until(() => idle(test));
    const failed = (reason: string) => metric(test, `migrations_failed_total{reason="${reason}"}`);
    return { answer, speakers, failed };
  };
  const lost = { error: "worker_lost", finish: undefined };

  it("ends with the error frame and [DONE], after the text so far: the limit is reached", async () => {
    const { answer, speakers, failed } = await lostAfter({ losses: [1, 2, 3], options: { migration: { limit: 2 } } });
    expect(answer).toMatchObject({ ...lost, content: "abc", worker: "w0" });
    expect(speakers.owners).toHaveLength(3);
    expect(await failed("limit")).toBe(1);
  });

  it("... migration is off", async () => {
    const { answer, speakers } = await lostAfter({ losses: [2], options: { migration: { limit: 0 } } });
    expect(answer).toMatchObject({ ...lost, content: "ab" });
    expect(speakers.owners).toEqual(["w0"]);
  });

  it("... the client named the worker", async () => {
    const { answer, failed } = await lostAfter({ losses: [2] }, { "x-stator-worker-id": "w1" });
    expect(answer).toMatchObject({ ...lost, content: "ab", worker: "w1" });
    expect(await failed("named_worker")).toBe(1);
  });

  it("... the engine cannot resume, but before the first token any engine will do", async () => {
    const cannot = { card: { capabilities: testCard.capabilities } };
    const { answer, speakers, failed } = await lostAfter({ ...cannot, losses: [0, 2] });
    expect(answer).toMatchObject({ ...lost, content: "ab", worker: "w1" });
    expect(speakers.owners).toEqual(["w0", "w1"]);
    expect(await failed("no_resume")).toBe(1);
  });

  it("... it is longer than migration.maxTokens", async () => {
    const { answer, failed } = await lostAfter({ losses: [3], options: { migration: { maxTokens: 7 } } });
    expect(answer).toMatchObject({ ...lost, content: "abc" });
    expect(await failed("too_long")).toBe(1);
    const fits = await lostAfter({ losses: [2], options: { migration: { maxTokens: 7 } } });
    expect(fits.answer).toMatchObject({ content: "abcdef", error: undefined });
  });

  it("... the next worker fails on it", async () => {
    let calls = 0;
    const test = await start({
      script: async (request, call, workerId) => {
        if (++calls === 1) return await new Speakers("abcdef", [2]).script(request, call, workerId);
        call.accept(0);
        throw new StatorError("engine_error", "cannot take it up");
      },
    });
    expect(await streamed(test, {})).toMatchObject({ content: "ab", error: "engine_error" });
    expect(await metric(test, `migrations_failed_total{reason="not_resumed"}`)).toBe(1);
    await until(() => idle(test));
  });
});

describe("when nobody takes it at once", () => {
  /** After the loss every offer is refused until `open`. */
  const refusing = (refusals: number) => {
    const seen = { refused: 0 };
    const speakers = new Speakers("abcdef", [2]);
    const script: WorkerScript = async (request, call, workerId) => {
      if (request.generated !== undefined && seen.refused < refusals) {
        seen.refused++;
        throw new StatorError("overloaded", "full");
      }
      await speakers.script(request, call, workerId);
    };
    return { seen, script };
  };

  it("asks again, the lost worker, too", async () => {
    const { seen, script } = refusing(3);
    const test = await start({ script });
    expect(await streamed(test, {})).toMatchObject({ content: "abcdef", error: undefined });
    expect(seen.refused).toBe(3);
    const alone = await start({ script: new Speakers("abcdef", [2, 4]).script, workers: ["w0"] });
    expect(await streamed(alone, {})).toMatchObject({ content: "abcdef", error: undefined });
    await until(() => idle(alone));
  });

  it("does not lose what it has when it waits for a slot in vain", async () => {
    const speakers = new Speakers("abcdef", [2]);
    let waits = 1;
    const script: WorkerScript = async (request, call, workerId) => {
      if (request.generated === undefined || waits-- <= 0) return await speakers.script(request, call, workerId);
      call.accept(3);
      throw new StatorError("queue_timeout", "no slot");
    };
    const test = await start({ script });
    expect(await streamed(test, {})).toMatchObject({ content: "abcdef", error: undefined });
    waits = 100;
    const crowded = await start({ script: (request, call) => script({ ...request, generated: none }, call, "w0") });
    const fresh = await crowded.post(path, { ...chat, stream: true });
    expect([fresh.status, await fresh.text()]).toEqual([503, expect.stringContaining("queue_timeout")]);
    expect(waits).toBe(99);
    await until(() => idle(crowded));
  });

  it("ends as lost when the time for a first token is over", async () => {
    const { script } = refusing(Number.POSITIVE_INFINITY);
    const test = await start({ script, options: { timeouts: { firstTokenMs: 600 } } });
    expect(await streamed(test, {})).toMatchObject({ content: "ab", error: "worker_lost" });
    expect(await metric(test, `migrations_failed_total{reason="no_worker"}`)).toBe(1);
    await until(() => idle(test));
  });

  it("ends when the request's time is over, or the client goes", async () => {
    const { seen, script } = refusing(Number.POSITIVE_INFINITY);
    const test = await start({ script });
    const answer = await streamed(test, {}, { "x-stator-timeout-ms": "500" });
    expect(["worker_lost", "deadline_exceeded"]).toContain(answer.error);
    await until(() => idle(test));
    const { seen: refused, script: other } = refusing(Number.POSITIVE_INFINITY);
    const second = await start({ script: other });
    const controller = new AbortController();
    const leaving = fetch(second.url + path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...chat, stream: true }),
      signal: controller.signal,
    }).then((response) => response.text());
    leaving.catch(() => {});
    await until(() => refused.refused > 0);
    controller.abort();
    await until(() => idle(second));
    expect(seen.refused).toBeGreaterThan(0);
  });
});

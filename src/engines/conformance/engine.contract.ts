import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Engine } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { Finish, GenerateRequest } from "../../protocol/generate.ts";
import { tokenBytes } from "../../protocol/token-table.ts";
import { resumeContract } from "./resume.contract.ts";
import { finished, type RequestChange, requestFor, run } from "./running.contract.ts";

export interface EngineContractOptions {
  /** A valid prompt of exactly `length` tokens; another one for another `variant`. */
  readonly prompt: (length: number, variant?: number) => Uint32Array;
  /** What the engine must refuse with `unsupported_parameter`. */
  readonly refused?: readonly { readonly what: string; readonly change: RequestChange; readonly param: string }[];
  /** Texts that must survive tokenizing. */
  readonly texts?: readonly string[];
  /** Tokens of a generation that is certainly still running when it is aborted. Default: the rest of the context. */
  readonly longTokens?: number;
  /** Length of a prompt whose prefill takes a while. Default: most of the context, at most 100,000. */
  readonly longPromptTokens?: number;
  /** Requests side by side. Default: min(4, maxRunning). */
  readonly concurrency?: number;
  /** A context that is too long to be filled in a test. Default false. */
  readonly skipOverflow?: boolean;
  /** For engines behind a plane: what happened here is known there a little later. Default 5 s. */
  readonly settleMs?: number;
  /** How a test gets an engine that runs `generate` forever: slow enough to be caught in the act. Default `makeEngine`. */
  readonly makeSlowEngine?: () => Promise<Engine>;
}

/** The rules of protocol/engine.ts, for any engine. */
export function engineContract(name: string, makeEngine: () => Promise<Engine>, options: EngineContractOptions): void {
  const { prompt, settleMs = 5000, makeSlowEngine = makeEngine } = options;

  async function settled(engine: Engine): Promise<void> {
    const end = performance.now() + settleMs;
    for (;;) {
      const { running, waiting } = engine.loads();
      if (running === 0 && waiting === 0) return;
      if (performance.now() > end) throw new Error(`${running} requests still run, ${waiting} wait`);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  }

  async function withEngine(make: () => Promise<Engine>, work: (engine: Engine) => Promise<void>): Promise<void> {
    const engine = await make();
    try {
      await work(engine);
    } finally {
      await engine.close();
    }
  }

  describe(`${name}: engine contract`, () => {
    let engine: Engine;
    beforeAll(async () => {
      engine = await makeEngine();
    });
    afterAll(async () => {
      await engine?.close();
    });

    const concurrency = (): number => options.concurrency ?? Math.min(4, engine.describe().capacity.maxRunning);
    const contextLength = (): number => engine.describe().card.contextLength;
    const longTokens = (from: number): number => options.longTokens ?? contextLength() - from;

    test("the descriptor makes sense and does not change", () => {
      const { kind, version, card, capacity } = engine.describe();
      expect([kind, version, card.name, card.revision].every((text) => text.length > 0)).toBe(true);
      expect(capacity.maxRunning).toBeGreaterThanOrEqual(1);
      expect(card.contextLength).toBeGreaterThanOrEqual(2);
      expect(card.blockSize).toBeGreaterThanOrEqual(1);
      expect(capacity.totalBlocks * card.blockSize).toBeGreaterThanOrEqual(card.contextLength);
      expect(card.roles.length).toBeGreaterThanOrEqual(1);
      expect(card.vocabularySize).toBeGreaterThanOrEqual(2);
      expect(engine.embedding !== undefined).toBe(card.embeddingLength !== undefined);
      expect(engine.describe()).toEqual(engine.describe());
    });

    test("it is healthy, by both probes", async () => {
      for (const probe of ["liveness", "canary"] as const) {
        expect(await engine.health(probe, AbortSignal.timeout(30_000))).toMatchObject({ state: "ready" });
      }
      await settled(engine);
    });

    test("maxTokens: exactly so many tokens, one finish, right usage", async () => {
      for (const maxTokens of [1, 2, 17]) {
        const { tokens, finish } = await finished(engine, requestFor(prompt(9), { stop: { maxTokens } }));
        expect(tokens.length).toBe(maxTokens);
        expect(finish.reason).toBe("length");
        for (const token of tokens) expect(token).toBeLessThan(engine.describe().card.vocabularySize);
      }
      await settled(engine);
    });

    test("a prompt of one token is enough", async () => {
      expect((await finished(engine, requestFor(prompt(1), { stop: { maxTokens: 3 } }))).tokens.length).toBe(3);
    });

    test("a stop token ends the sequence and is not part of the output", async () => {
      const free = await finished(engine, requestFor(prompt(12), { stop: { maxTokens: 12 } }));
      const at = 5;
      const stopToken = free.tokens[at]!;
      const first = free.tokens.indexOf(stopToken);
      const stopped = await finished(
        engine,
        requestFor(prompt(12), { stop: { maxTokens: 12, stopTokenIds: [stopToken] } }),
      );
      expect(stopped.tokens).toEqual(free.tokens.slice(0, first));
      expect(stopped.finish).toMatchObject({ reason: "stop", stopTokenId: stopToken });
    });

    test("minTokens: no stop token before, and none in the output", async () => {
      const free = await finished(engine, requestFor(prompt(12), { stop: { maxTokens: 12 } }));
      const stopTokenIds = [free.tokens[0]!];
      const { tokens, finish } = await finished(
        engine,
        requestFor(prompt(12), { stop: { maxTokens: 20, minTokens: 8, stopTokenIds } }),
      );
      expect(tokens.length).toBeGreaterThanOrEqual(8);
      expect(tokens).not.toContain(stopTokenIds[0]);
      if (finish.reason === "stop") expect(finish.stopTokenId).toBe(stopTokenIds[0]);
      else expect(tokens.length).toBe(20);
    });

    test("ignoreEos goes on to maxTokens", async () => {
      const { tokens, finish } = await finished(
        engine,
        requestFor(prompt(5, 3), { stop: { maxTokens: 64, ignoreEos: true } }),
      );
      expect(tokens.length).toBe(64);
      expect(finish.reason).toBe("length");
    });

    test("logprobs: one entry per token, exactly N alternatives, most likely first", async () => {
      const max = engine.describe().card.capabilities.maxTopLogprobs;
      if (max < 0) {
        const { error } = await run(engine, requestFor(prompt(4), { topLogprobs: 0 }));
        expect(error).toMatchObject({ code: "unsupported_parameter" });
        return;
      }
      for (const topLogprobs of [0, Math.min(1, max), Math.min(5, max)]) {
        const { tokens, logprobs } = await finished(engine, requestFor(prompt(7), { topLogprobs }));
        expect(logprobs.length).toBe(tokens.length);
        for (const [i, entry] of logprobs.entries()) {
          expect(entry.logprob).toBeLessThanOrEqual(1e-3);
          expect(entry.top.length).toBe(topLogprobs);
          const values = entry.top.map((it) => it.logprob);
          expect(values).toEqual([...values].sort((a, b) => b - a));
          expect(new Set(entry.top.map((it) => it.token)).size).toBe(topLogprobs);
          const greedyChoice = entry.top[0]; // at temperature 0 nothing is likelier than the chosen token
          if (greedyChoice) {
            expect(greedyChoice.logprob).toBeCloseTo(entry.logprob, 3);
            const listed = entry.top.find((it) => it.token === tokens[i]);
            if (listed) expect(listed.logprob).toBeCloseTo(entry.logprob, 3);
          }
        }
      }
    });

    test("the same seed gives the same tokens, streamed in whatever pieces", async () => {
      const change = { sampling: { temperature: 1, seed: 42 }, stop: { maxTokens: 24 } };
      const first = await finished(engine, requestFor(prompt(10), change));
      const second = await finished(engine, requestFor(prompt(10), change));
      expect(second.tokens).toEqual(first.tokens);
    });

    test("requests side by side give what each gives alone, and a bad one among them fails alone", async () => {
      const variants = Array.from({ length: concurrency() }, (_, i) => i);
      const make = (variant: number): GenerateRequest =>
        requestFor(prompt(8 + variant, variant), { stop: { maxTokens: 20 } });
      const alone: number[][] = [];
      for (const variant of variants) alone.push((await finished(engine, make(variant))).tokens);
      const bad = run(engine, { ...requestFor(prompt(3)), tokens: Uint32Array.of(0xffffffff) });
      const together = await Promise.all(variants.map((variant) => finished(engine, make(variant))));
      expect(together.map((it) => it.tokens)).toEqual(alone);
      const { error, tokens, finishes } = await bad;
      expect(error).toBeInstanceOf(StatorError);
      expect((error as StatorError).class.status).toBe(400);
      expect([tokens, finishes]).toEqual([[], []]);
      await settled(engine);
    });

    test("what it cannot honour it refuses by name, before the first token", async () => {
      for (const { what, change, param } of options.refused ?? []) {
        const { error, tokens } = await run(engine, requestFor(prompt(4), change));
        expect(error, what).toMatchObject({ code: "unsupported_parameter", param });
        expect(tokens).toEqual([]);
      }
      await settled(engine);
    });

    test("a prompt that does not fit is refused", async () => {
      const { error, tokens } = await run(engine, requestFor(prompt(contextLength())));
      expect(error).toMatchObject({ code: "context_length_exceeded" });
      expect(tokens).toEqual([]);
      await settled(engine);
    });

    test.skipIf(options.skipOverflow === true)("output that fills the context ends with length", async () => {
      const promptTokens = Math.max(1, contextLength() - 10);
      const { tokens, finish } = await finished(
        engine,
        requestFor(prompt(promptTokens), { stop: { maxTokens: 1000 } }),
      );
      expect(finish.reason).toBe("length");
      expect(promptTokens + tokens.length).toBeLessThanOrEqual(contextLength());
      expect(promptTokens + tokens.length).toBeGreaterThanOrEqual(contextLength() - 1);
    });

    test("an aborted signal, before the start and during the prefill, ends the request within 1 s", async () => {
      const promptTokens = options.longPromptTokens ?? Math.min(Math.floor(contextLength() * 0.9), 100_000);
      for (const when of ["before", "during"]) {
        const controller = new AbortController();
        if (when === "before") controller.abort();
        const running = run(engine, requestFor(prompt(promptTokens, 1), { stop: { maxTokens: 5 } }), controller.signal);
        const began = performance.now();
        if (when === "during") setImmediate(() => controller.abort());
        const { error, finishes } = await running;
        expect(performance.now() - began).toBeLessThan(1000);
        expect(finishes.length + (error === undefined ? 0 : 1)).toBe(1);
        await settled(engine);
      }
    });

    test("an abort during the decode ends the request within 1 s, by a finish or an error, and others go on", async () => {
      await withEngine(makeSlowEngine, async (slow) => {
        const controller = new AbortController();
        const neighbour = finished(slow, requestFor(prompt(6, 2), { stop: { maxTokens: 30 } }));
        let abortedAt = 0;
        let tokens = 0;
        let finish: Finish | undefined;
        try {
          const request = requestFor(prompt(6), { stop: { maxTokens: longTokens(6) } });
          for await (const delta of slow.generate(request, controller.signal)) {
            tokens += delta.tokens.length;
            finish = delta.finish;
            if (tokens >= 3 && abortedAt === 0) {
              abortedAt = performance.now();
              controller.abort();
            }
          }
          expect(finish?.reason).toBe("abort");
          expect(finish?.usage.completionTokens).toBe(tokens);
        } catch (thrown) {
          if (!controller.signal.aborted || finish) throw thrown;
        }
        expect(abortedAt).toBeGreaterThan(0);
        expect(performance.now() - abortedAt).toBeLessThan(1000);
        expect((await neighbour).tokens.length).toBe(30);
        await settled(slow);
      });
    });

    test("a consumer that leaves the loop frees the request", async () => {
      await withEngine(makeSlowEngine, async (slow) => {
        const request = requestFor(prompt(6), { stop: { maxTokens: longTokens(6) } });
        for await (const delta of slow.generate(request, AbortSignal.timeout(60_000)))
          if (delta.tokens.length > 0) break;
        await settled(slow);
        const signal = AbortSignal.timeout(60_000);
        const iterator = slow.generate(requestFor(prompt(6)), signal)[Symbol.asyncIterator]();
        await iterator.return?.(); // before the first next()
        await settled(slow);
      });
    });

    test("an abort while nobody pulls frees the request when the iterator is returned", async () => {
      await withEngine(makeSlowEngine, async (slow) => {
        const controller = new AbortController();
        const request = requestFor(prompt(6), { stop: { maxTokens: longTokens(6) } });
        const iterator = slow.generate(request, controller.signal)[Symbol.asyncIterator]();
        await iterator.next();
        controller.abort();
        await iterator.return?.();
        await settled(slow);
      });
    });

    test("tokenize and the token table agree", async () => {
      const { tokenizing } = engine;
      if (!tokenizing) {
        expect(engine.describe().card.tokenizer.kind).not.toBe("engine");
        return;
      }
      const table = tokenizing.tokenTable();
      expect(table.flags.length).toBe(engine.describe().card.vocabularySize);
      expect(table.offsets.length).toBe(table.flags.length + 1);
      expect(table.offsets[table.flags.length]).toBe(table.bytes.length);
      const signal = AbortSignal.timeout(30_000);
      for (const text of options.texts ?? [
        "",
        "Hello, world!",
        "zwölf Boxkämpfer 😀\n\ttabs",
        "日本語",
        "a".repeat(5000),
      ]) {
        const tokens = await tokenizing.tokenize(text, { addSpecial: false, parseSpecial: false }, signal);
        const bytes = Buffer.concat(Array.from(tokens, (id) => tokenBytes(table, id)));
        // A tokenizer may put one space in front of the text (SentencePiece).
        expect([text, ` ${text}`]).toContain(bytes.toString("utf8"));
      }
    });

    test("embeddings: one vector of the promised length, the same for the same text", async () => {
      const { embedding } = engine;
      if (!embedding) {
        expect(engine.describe().card.embeddingLength).toBeUndefined();
        return;
      }
      const signal = AbortSignal.timeout(30_000);
      const first = await embedding.embed(prompt(12), signal);
      expect(first.length).toBe(engine.describe().card.embeddingLength);
      expect(first.every(Number.isFinite)).toBe(true);
      expect(first.some((value) => value !== 0)).toBe(true);
      const again = await embedding.embed(prompt(12), signal);
      for (const [i, value] of again.entries()) expect(value).toBeCloseTo(first[i]!, 4);
      const other = await embedding.embed(prompt(12, 5), signal);
      expect(other.some((value, i) => Math.abs(value - first[i]!) > 1e-6)).toBe(true);
    });

    test("drain refuses new requests, lets the running ones end, and waits for them", async () => {
      await withEngine(makeSlowEngine, async (slow) => {
        const iterator = slow.generate(requestFor(prompt(6), { stop: { maxTokens: 40 } }), AbortSignal.timeout(60_000));
        const running = iterator[Symbol.asyncIterator]();
        let tokens = (await running.next()).value?.tokens.length ?? 0;
        let drained = false;
        const draining = slow.drain(AbortSignal.timeout(60_000)).then(() => {
          drained = true;
        });
        const { error } = await run(slow, requestFor(prompt(4)));
        expect(error).toMatchObject({ code: "draining" });
        expect(drained).toBe(false);
        for (let step = await running.next(); !step.done; step = await running.next())
          tokens += step.value.tokens.length;
        expect(tokens).toBe(40);
        await draining;
      });
    });

    test("drain gives up when its signal aborts", async () => {
      await withEngine(makeSlowEngine, async (slow) => {
        const request = requestFor(prompt(6), { stop: { maxTokens: longTokens(6) } });
        const iterator = slow.generate(request, AbortSignal.timeout(60_000))[Symbol.asyncIterator]();
        await iterator.next();
        const began = performance.now();
        await slow.drain(AbortSignal.timeout(30)).catch(() => {});
        expect(performance.now() - began).toBeLessThan(2000);
        await iterator.return?.();
      });
    });

    test("close ends everything at once and may be called again", async () => {
      const closing = await makeSlowEngine();
      const request = requestFor(prompt(6), { stop: { maxTokens: longTokens(6) } });
      let started!: () => void;
      const underWay = new Promise<void>((resolve) => {
        started = resolve;
      });
      const ended = (async () => {
        for await (const delta of closing.generate(request, AbortSignal.timeout(60_000)))
          if (delta.tokens.length > 0) started();
      })().then(
        () => "ended",
        (thrown: unknown) => thrown,
      );
      await underWay;
      await Promise.all([closing.close(), closing.close()]);
      await closing.close();
      const outcome = await Promise.race([
        ended,
        new Promise((resolve) => setTimeout(resolve, 5000, "still running").unref()),
      ]);
      expect(outcome).not.toBe("still running");
      const { error } = await run(closing, requestFor(prompt(3)));
      expect(error).toBeInstanceOf(StatorError);
    });

    resumeContract(() => engine, prompt);

    test("at rest nothing runs", () => settled(engine));
  });
}

import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { StatorError, TokenFlag, tokenBytes } from "../../protocol/index.ts";
import { createLlamaEngine, type LlamaEngine } from "./index.ts";
import { answer, builtinModel, concurrently, request, type ShortRequest, variedPrompts } from "./testing.contract.ts";

const endOfTurn = 6;
const [prompt] = variedPrompts(1, 7) as [Uint32Array];

let engine: LlamaEngine;

beforeAll(async () => {
  engine = await createLlamaEngine(
    { modelPath: builtinModel, name: "stator-builtin", flashAttention: false },
    AbortSignal.timeout(30_000),
  );
});

afterAll(() => engine.close());

const run = (short: ShortRequest = {}, tokens: Iterable<number> = prompt) => answer(engine, request(tokens, short));

const textOf = (tokens: Iterable<number>): string => {
  const table = engine.tokenizing.tokenTable();
  return Buffer.concat(Array.from(tokens, (token) => tokenBytes(table, token))).toString("utf8");
};

/** Resolves as soon as `condition` holds. */
async function until(condition: () => boolean, limitMs = 5000): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error("The condition was not met in time.");
    await new Promise((resolve) => setImmediate(resolve));
  }
}

async function rejection(work: Promise<unknown>): Promise<StatorError> {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(StatorError);
  return error as StatorError;
}

test("tells about its model", () => {
  const { kind, version, card, capacity } = engine.describe();
  expect(kind).toBe("llama");
  expect(version).toContain("3.21.1");
  expect(card).toMatchObject({
    name: "stator-builtin",
    vocabularySize: 512,
    contextLength: 4096,
    bosToken: "<s>",
    eosToken: "</s>",
    tokenizer: { kind: "engine" },
    embeddingLength: 64,
  });
  expect(card.revision).toMatch(/^[0-9a-f]{64}$/);
  expect(card.chatTemplate).toContain("<|assistant|>");
  expect(capacity).toEqual({ maxRunning: 4, totalBlocks: 1024 });
});

describe("ends", () => {
  test("with length at max_tokens", async () => {
    const { tokens, finish } = await run({ stop: { maxTokens: 5 } });
    expect(tokens).toHaveLength(5);
    expect(finish).toMatchObject({ reason: "length", usage: { promptTokens: prompt.length, completionTokens: 5 } });
  });

  test("with stop at the end token, which is not output", async () => {
    const seeds = Array.from({ length: 12 }, (_, seed) => seed);
    const answers = await concurrently(seeds, 4, (seed) =>
      run({ sampling: { temperature: 1, seed }, stop: { maxTokens: 2000 } }),
    );
    for (const { tokens, finish } of answers) {
      expect(finish).toMatchObject({ reason: "stop", stopTokenId: endOfTurn });
      expect(tokens).not.toContain(endOfTurn);
      expect(finish.usage.completionTokens).toBe(tokens.length);
    }
    const lengths = answers.map(({ tokens }) => tokens.length).sort((a, b) => a - b);
    expect(lengths[6], "the middle answer is neither empty nor endless").toBeGreaterThan(20);
    expect(lengths[6]).toBeLessThan(400);
  });

  test("with stop at a stop token id, but not before min_tokens", async () => {
    const { tokens } = await run({ stop: { maxTokens: 30 } });
    const stopId = tokens[9]!;
    const first = tokens.indexOf(stopId);
    const stopped = await run({ stop: { maxTokens: 30, stopTokenIds: [stopId] } });
    expect(stopped.tokens).toEqual(tokens.slice(0, first));
    expect(stopped.finish).toMatchObject({ reason: "stop", stopTokenId: stopId });

    const later = await run({ stop: { maxTokens: 60, minTokens: 20, stopTokenIds: [stopId] } });
    expect(later.tokens.length).toBeGreaterThanOrEqual(20);
    expect(later.tokens).not.toContain(stopId);
  });

  test("not before min_tokens when the model wants to end", async () => {
    const wantsToEnd = { logitBias: [[endOfTurn, 100]] as const };
    const ended = await run({ sampling: wantsToEnd });
    expect(ended).toMatchObject({ tokens: [], finish: { reason: "stop", stopTokenId: endOfTurn } });
    const later = await run({ sampling: wantsToEnd, stop: { minTokens: 7 } });
    expect(later.tokens).toHaveLength(7);
    expect(later.finish).toMatchObject({ reason: "stop", stopTokenId: endOfTurn });
  });

  test("not at the end token when told to ignore it", async () => {
    const { tokens, finish } = await run({
      sampling: { logitBias: [[endOfTurn, 100]] },
      stop: { maxTokens: 6, ignoreEos: true },
    });
    expect(tokens).toEqual(Array(6).fill(endOfTurn));
    expect(finish).toMatchObject({ reason: "length", usage: { completionTokens: 6 } });
  });

  test("with length at the end of the context, and refuses a prompt that fills it", async () => {
    const small = await createLlamaEngine(
      { modelPath: builtinModel, name: "small", contextLength: 256, sequences: 2 },
      AbortSignal.timeout(30_000),
    );
    try {
      const { contextLength } = small.describe().card;
      const long = Array.from({ length: contextLength - 10 }, (_, i) => 263 + (i % 200));
      const { tokens, finish } = await answer(small, request(long, { stop: { maxTokens: 500, ignoreEos: true } }));
      expect(tokens).toHaveLength(10);
      expect(finish.reason).toBe("length");
      const full = [...long, ...long.slice(0, 9)];
      expect((await answer(small, request(full, { stop: { ignoreEos: true } }))).tokens).toHaveLength(1);
      const error = await rejection(answer(small, request([...full, 263])));
      expect(error).toMatchObject({ code: "context_length_exceeded", param: "prompt" });
    } finally {
      await small.close();
    }
  });
});

describe("sampling", () => {
  test("a seed repeats, another differs", async () => {
    const sample = (seed: number) => run({ sampling: { temperature: 1, seed }, stop: { maxTokens: 20 } });
    const [a, b, c] = [await sample(11), await sample(11), await sample(12)];
    expect(b.tokens).toEqual(a.tokens);
    expect(c.tokens).not.toEqual(a.tokens);
    expect((await sample(0xffffffff)).tokens).toEqual((await sample(0xffffffff)).tokens);
  });

  test("no seed differs from run to run", async () => {
    const sample = () => run({ sampling: { temperature: 1 }, stop: { maxTokens: 20, ignoreEos: true } });
    expect((await sample()).tokens).not.toEqual((await sample()).tokens);
  });

  test("top_k 1 and a tiny top_p are greedy", async () => {
    const { tokens } = await run({ stop: { maxTokens: 20 } });
    expect((await run({ sampling: { temperature: 1, topK: 1, seed: 1 }, stop: { maxTokens: 20 } })).tokens).toEqual(
      tokens,
    );
    const tiny = { temperature: 1, topP: 1e-6, seed: 1 };
    expect((await run({ sampling: tiny, stop: { maxTokens: 20 } })).tokens).toEqual(tokens);
    expect((await run({ sampling: { temperature: 1, minP: 1, seed: 1 }, stop: { maxTokens: 20 } })).tokens).toEqual(
      tokens,
    );
  });

  test("logit_bias forces and forbids", async () => {
    const { tokens } = await run({ stop: { maxTokens: 10 } });
    const without = await run({ sampling: { logitBias: [[tokens[0]!, -100]] }, stop: { maxTokens: 10 } });
    expect(without.tokens).not.toContain(tokens[0]);
    const forced = await run({ sampling: { logitBias: [[300, 100]] }, stop: { maxTokens: 4 } });
    expect(forced.tokens).toEqual([300, 300, 300, 300]);
  });

  test("penalties make repetition rarer", async () => {
    const stop = { maxTokens: 80, ignoreEos: true };
    const distinct = async (sampling: object) => new Set((await run({ sampling, stop })).tokens).size;
    const plain = await distinct({});
    expect(await distinct({ frequencyPenalty: 2 })).toBeGreaterThan(plain);
    expect(await distinct({ presencePenalty: 2 })).toBeGreaterThan(plain);
    expect(await distinct({ repetitionPenalty: 2 })).toBeGreaterThan(plain);
  });

  test("the repetition penalty remembers generated tokens, the frequency penalty ignores the prompt", async () => {
    const stop = { maxTokens: 12, ignoreEos: true };
    const count = async (sampling: object) => (await run({ sampling, stop })).tokens.filter((id) => id === 300).length;
    const likely = { logitBias: [[300, 8]] as const };
    expect(await count({ ...likely, repetitionPenalty: 2 })).toBeLessThan(await count(likely));
    const crowded = [1, 4, ...Array<number>(40).fill(300), 6, 5];
    const first = await run(
      { sampling: { logitBias: [[300, 20]], frequencyPenalty: 2 }, stop: { maxTokens: 1 } },
      crowded,
    );
    expect(first.tokens).toEqual([300]);
  });
});

describe("logprobs", () => {
  const top = 4;

  test("lists exactly N alternatives of the plain distribution, and the chosen token", async () => {
    const { tokens, logprobs } = await run({ topLogprobs: top, stop: { maxTokens: 12 } });
    expect(tokens).toEqual((await run({ stop: { maxTokens: 12 } })).tokens);
    expect(logprobs).toHaveLength(tokens.length);
    for (const [index, entry] of logprobs.entries()) {
      expect(entry.top).toHaveLength(top);
      expect(entry.top[0]).toEqual({ token: tokens[index], logprob: entry.logprob });
      const values = entry.top.map(({ logprob }) => logprob);
      expect(values).toEqual([...values].sort((a, b) => b - a));
      expect(Math.exp(entry.logprob)).toBeGreaterThan(1 / 512);
      expect(values.reduce((sum, value) => sum + Math.exp(value), 0)).toBeLessThanOrEqual(1.0001);
    }
  });

  test("zero alternatives give the chosen token only", async () => {
    const { logprobs } = await run({ topLogprobs: 0, stop: { maxTokens: 3 } });
    expect(logprobs.map((entry) => entry.top)).toEqual([[], [], []]);
    expect(logprobs.every((entry) => entry.logprob < 0)).toBe(true);
  });

  test.each([
    ["temperature", { temperature: 0.3, seed: 5 }],
    ["top_k", { temperature: 1, topK: 5, seed: 5 }],
    ["logit_bias", { logitBias: [[300, 3]] as const }],
    ["penalties", { frequencyPenalty: 1.5 }],
    ["repetition_penalty", { repetitionPenalty: 1.5 }],
  ])("do not change with %s, and do not change the text", async (_name, sampling) => {
    const stop = { maxTokens: 12, ignoreEos: true };
    const { tokens, logprobs } = await run({ sampling, topLogprobs: top, stop });
    expect(tokens).toEqual((await run({ sampling, stop })).tokens);
    // The plain distribution after the same text, from a greedy request per position.
    for (const position of [0, 1, 5, 11]) {
      const plain = await run({ topLogprobs: top, stop: { maxTokens: 1 } }, [...prompt, ...tokens.slice(0, position)]);
      expect(logprobs[position]?.top.map(({ token }) => token)).toEqual(
        plain.logprobs[0]?.top.map(({ token }) => token),
      );
      for (const [index, entry] of logprobs[position]!.top.entries()) {
        expect(entry.logprob).toBeCloseTo(plain.logprobs[0]!.top[index]!.logprob, 2);
      }
    }
  });
});

describe("grammars", () => {
  test("gbnf is followed to its end", async () => {
    const { tokens, finish } = await run({ grammar: { kind: "gbnf", grammar: 'root ::= "yes" | "no"' } });
    expect(["yes", "no"]).toContain(textOf(tokens));
    expect(finish.reason).toBe("stop");
  });

  test.each([1, 2, 3])("a JSON schema gives JSON of that shape (seed %i)", async (seed) => {
    const schema = {
      type: "object",
      properties: {
        kind: { enum: ["a", "b"] },
        count: { type: "integer" },
        tags: { type: "array", items: { type: "string", maxLength: 5 }, maxItems: 2 },
        inner: {
          type: "object",
          properties: { ok: { type: "boolean" } },
          required: ["ok"],
          additionalProperties: false,
        },
      },
      required: ["kind", "count", "tags", "inner"],
      additionalProperties: false,
    };
    const { tokens, finish } = await run({
      grammar: { kind: "json_schema", schema: JSON.stringify(schema) },
      sampling: { temperature: 1, seed },
      stop: { maxTokens: 3000 },
    });
    expect(finish.reason).toBe("stop");
    const value = JSON.parse(textOf(tokens)) as Record<string, unknown>;
    expect(Object.keys(value)).toEqual(["kind", "count", "tags", "inner"]);
    expect(["a", "b"]).toContain(value.kind);
    expect(Number.isInteger(value.count)).toBe(true);
    expect(value.inner).toEqual({ ok: expect.any(Boolean) as boolean });
  });

  test("json_object starts an object, and logprobs go with a grammar", async () => {
    const { tokens, logprobs } = await run({
      grammar: { kind: "json_object" },
      topLogprobs: 2,
      stop: { maxTokens: 10 },
    });
    expect(textOf(tokens).trimStart()).toMatch(/^\{/);
    expect(logprobs).toHaveLength(tokens.length);
  });

  test("a grammar that leaves no token is an error of its request only", async () => {
    const neighbour = run({ stop: { maxTokens: 50, ignoreEos: true } });
    const error = await rejection(run({ grammar: { kind: "gbnf", grammar: "root ::= [z-a]" } }));
    expect(error).toMatchObject({ code: "invalid_value", param: "response_format.grammar" });
    expect((await neighbour).tokens).toHaveLength(50);
  });

  test("a grammar wins over min_tokens", async () => {
    const { tokens, finish } = await run({
      grammar: { kind: "gbnf", grammar: 'root ::= "yes"' },
      stop: { minTokens: 50, maxTokens: 60 },
    });
    expect(textOf(tokens)).toBe("yes");
    expect(finish.reason).toBe("stop");
  });

  test.each([
    ["empty", ""],
    ["syntax", "root ::= ("],
    ["no root", 'start ::= "a"'],
    ["undefined rule", "root ::= missing"],
    ["left recursion", 'root ::= root "a" | "a"'],
    ["indirect left recursion", 'root ::= other\nother ::= root "a"'],
    ["open literal", 'root ::= "abc'],
    ["open class", "root ::= [abc"],
    ["huge repetition", 'root ::= "a"{1,100000000}'],
    ["nested repetitions", `root ::= ${"(".repeat(40)}"a"${"){1000}".repeat(40)}`],
    ["deep nesting", `root ::= ${"(".repeat(50_000)}"a"${")".repeat(50_000)}`],
    ["repetition of nothing", 'root ::= ("a"*)*'],
    ["a token id", "root ::= <[99999999]>"],
    ["possibilities that double", 'root ::= "a" root "b" | "a" root "c" | "x"'],
    ["possibilities that multiply", "root ::= [^a] root{0,3}"],
    ["possibilities that add up", "root ::= [^a] root*"],
    ["many optional things", `root ::= ${'"a"? '.repeat(2000)}`],
    [
      "a tree of alternatives",
      `root ::= a0\n${Array.from({ length: 60 }, (_, i) => `a${i} ::= a${i + 1} | a${i + 1}`).join("\n")}\na60 ::= "x"`,
    ],
    ["NUL", 'root ::= "a\0b"'],
    ["too long", `root ::= "${"a".repeat(300_000)}"`],
  ])("bad gbnf is refused: %s", async (_name, grammar) => {
    const error = await rejection(run({ grammar: { kind: "gbnf", grammar } }));
    expect(error).toMatchObject({ code: "invalid_value", param: "response_format.grammar" });
  });

  test.each([
    ["not JSON", "{"],
    ["not an object", "[]"],
    ["pattern", '{"type":"string","pattern":"a+"}'],
    ["minimum", '{"type":"integer","minimum":3}'],
    ["allOf", '{"allOf":[{"type":"string"},{"maxLength":3}]}'],
    ["a definition that is nothing but itself", '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}'],
    ["foreign reference", '{"$ref":"https://example.com/schema"}'],
    ["unknown type", '{"type":"text"}'],
    ["nested unknown keyword", '{"type":"object","properties":{"a":{"type":"string","contentEncoding":"base64"}}}'],
    ["deep", `${'{"type":"array","items":'.repeat(200)}{"type":"null"}${"}".repeat(200)}`],
  ])("a schema that would not be honoured is refused: %s", async (_name, schema) => {
    const error = await rejection(run({ grammar: { kind: "json_schema", schema } }));
    expect(error).toMatchObject({ code: "invalid_value", param: "response_format.json_schema.schema" });
  });

  test("after all that, the engine still works", async () => {
    expect((await run({ stop: { maxTokens: 3 } })).tokens).toHaveLength(3);
  });
});

test("a long prefill shows signs of life: empty deltas until the first token", async () => {
  const long = Array.from({ length: 2000 }, (_, i) => 263 + ((i * 23) % 240));
  let lifeSigns = 0;
  let tokens = 0;
  for await (const delta of engine.generate(request(long, { stop: { maxTokens: 2 } }), AbortSignal.timeout(60_000))) {
    if (tokens === 0 && delta.tokens.length === 0) lifeSigns++;
    tokens += delta.tokens.length;
  }
  expect(tokens).toBe(2);
  // One after each chunk of 16 tokens; some may fall together.
  expect(lifeSigns).toBeGreaterThan(20);
});

describe("bad requests", () => {
  test.each<[string, ShortRequest, number[], string, string]>([
    ["no tokens", {}, [], "invalid_value", "prompt"],
    ["a token outside of the vocabulary", {}, [1, 512], "invalid_value", "prompt"],
    ["a huge token", {}, [0xffffffff], "invalid_value", "prompt"],
    ["a bias outside of the vocabulary", { sampling: { logitBias: [[512, 1]] } }, [1], "invalid_value", "logit_bias"],
    ["a stop token outside of it", { stop: { stopTokenIds: [-1] } }, [1], "invalid_value", "stop_token_ids"],
    ["too many alternatives", { topLogprobs: 21 }, [1], "invalid_value", "top_logprobs"],
    ["NaN", { sampling: { temperature: Number.NaN } }, [1], "invalid_value", "temperature"],
    ["no output wanted", { stop: { maxTokens: 0 } }, [1], "invalid_value", "max_tokens"],
  ])("%s", async (_name, short, tokens, code, param) => {
    expect(await rejection(run(short, tokens))).toMatchObject({ code, param });
    expect(engine.loads().running).toBe(0);
  });
});

describe("the cache", () => {
  test("serves the prefix of an earlier prompt, never the last token", async () => {
    const long = Array.from({ length: 203 }, (_, i) => 263 + ((i * 7) % 240));
    expect((await run({}, long)).finish.usage.cachedTokens).toBe(0);
    expect((await run({}, long)).finish.usage.cachedTokens).toBe(192);
    expect((await run({}, long.slice(0, 64))).finish.usage.cachedTokens).toBe(48);
  });

  test("fills and frees blocks", async () => {
    const before = engine.loads().usedBlocks ?? 0;
    const fresh = Array.from({ length: 320 }, (_, i) => 263 + ((i * 11 + 5) % 240));
    await run({ stop: { maxTokens: 1 } }, fresh);
    expect(engine.loads().usedBlocks).not.toBe(before);
    expect(engine.loads().usedBlocks).toBeLessThanOrEqual(engine.describe().capacity.totalBlocks);
  });

  test("survives a canary", async () => {
    const long = Array.from({ length: 100 }, (_, i) => 263 + ((i * 13) % 240));
    const first = await run({}, long);
    for (let i = 0; i < 5; i++) {
      expect(await engine.health("canary", AbortSignal.timeout(5000))).toEqual({ state: "ready" });
    }
    const second = await run({}, long);
    expect(second.finish.usage.cachedTokens).toBe(96);
    expect(second.tokens).toEqual(first.tokens);
  });
});

describe("stopping", () => {
  const endless: ShortRequest = { stop: { maxTokens: 4000, ignoreEos: true } };

  test("an abort ends the stream and frees the sequence", async () => {
    const controller = new AbortController();
    const stream = engine.generate(request(prompt, endless), controller.signal);
    let last: unknown;
    let count = 0;
    for await (const delta of stream) {
      if (++count === 3) controller.abort();
      last = delta.finish;
    }
    expect(last).toMatchObject({ reason: "abort" });
    await until(() => engine.loads().running === 0);
  });

  test("an abort during a long prefill takes effect at once", async () => {
    const controller = new AbortController();
    const long = Array.from({ length: 4000 }, (_, i) => 263 + ((i * 17) % 240));
    let abortedAt = 0;
    for await (const delta of engine.generate(request(long, endless), controller.signal)) {
      if (delta.finish !== undefined) {
        expect(delta.finish).toMatchObject({ reason: "abort", usage: { completionTokens: 0 } });
        break;
      }
      expect(delta.tokens).toHaveLength(0); // a sign of life: chunks are under way
      if (abortedAt === 0) abortedAt = performance.now();
      controller.abort();
    }
    expect(abortedAt).toBeGreaterThan(0);
    expect(performance.now() - abortedAt).toBeLessThan(500);
    expect(engine.loads().running).toBe(0);
  });

  test("an abort during the prefills of all sequences takes effect at once, and the others go on", async () => {
    const controllers = Array.from({ length: 4 }, () => new AbortController());
    const lifeSigns = controllers.map(() => 0);
    const ends = controllers.map(async ({ signal }, index) => {
      const long = Array.from({ length: 1500 }, (_, i) => 263 + ((i * 19 + index * 41) % 240));
      for await (const delta of engine.generate(request(long, { stop: { maxTokens: 1 } }), signal)) {
        if (delta.finish !== undefined) return delta.finish;
        lifeSigns[index]!++;
      }
      return undefined;
    });
    await until(() => lifeSigns.every((count) => count >= 3));
    const aborted = performance.now();
    controllers[2]!.abort();
    expect(await ends[2]).toMatchObject({ reason: "abort", usage: { completionTokens: 0 } });
    expect(performance.now() - aborted).toBeLessThan(500);
    for (const index of [0, 1, 3]) expect(await ends[index]).toMatchObject({ reason: "length" });
  });

  test("an abort works when nobody pulls", async () => {
    const controller = new AbortController();
    const stream = engine.generate(request(prompt, endless), controller.signal)[Symbol.asyncIterator]();
    await stream.next();
    controller.abort();
    await until(() => engine.loads().running === 0, 1000);
  });

  test("a consumer that leaves frees the sequence", async () => {
    for await (const delta of engine.generate(request(prompt, endless), new AbortController().signal)) {
      if (delta.tokens.length > 0) break;
    }
    expect(engine.loads().running).toBe(0);
  });

  test("a consumer that does not pull pauses the sequence, and gets everything later", async () => {
    const wanted = request(prompt, { stop: { maxTokens: 1500, ignoreEos: true } });
    const stream = engine.generate(wanted, AbortSignal.timeout(20_000))[Symbol.asyncIterator]();
    const tokens = [...((await stream.next()).value?.tokens ?? [])];
    const other = await run({ stop: { maxTokens: 900, ignoreEos: true } }); // time enough to fill the queue
    expect(other.tokens).toHaveLength(900);
    expect(engine.loads().running).toBe(1);
    for (let next = await stream.next(); !next.done; next = await stream.next()) tokens.push(...next.value.tokens);
    expect(tokens).toHaveLength(1500);
    expect(tokens.slice(0, 900)).toEqual(other.tokens);
  });

  test("a deadline ends it with an error", async () => {
    const error = await rejection(answer(engine, request(prompt, { ...endless, timeoutMs: 30 })));
    expect(error.code).toBe("deadline_exceeded");
    expect(engine.loads().running).toBe(0);
  });

  test("more requests than sequences are refused, and no other is touched", async () => {
    const running = Array.from({ length: 4 }, () => run({ stop: { maxTokens: 200, ignoreEos: true } }));
    await until(() => engine.loads().running === 4);
    expect((await rejection(run())).code).toBe("overloaded");
    for (const { tokens } of await Promise.all(running)) expect(tokens).toHaveLength(200);
  });
});

describe("the tokenizer", () => {
  const signal = new AbortController().signal;
  const tokenize = (text: string, parseSpecial = true, addSpecial = false) =>
    engine.tokenizing.tokenize(text, { addSpecial, parseSpecial }, signal);

  test.each(["Hello, world!", " the people", "äöü € 😀", "a\n\tb", "", "  two  spaces "])(
    "%j comes back from its tokens' bytes",
    async (text) => {
      expect(textOf(await tokenize(text))).toBe(text);
    },
  );

  test("special tokens only when asked", async () => {
    expect(Array.from(await tokenize("<|user|>a<|end|>"))).toEqual([4, expect.any(Number), 6]);
    expect(Array.from(await tokenize("<|user|>", false))).not.toContain(4);
    expect((await tokenize("a", true, true))[0]).toBe(1);
  });

  test("end tokens are flagged", () => {
    const { flags } = engine.tokenizing.tokenTable();
    const ends = Array.from(flags.keys()).filter((id) => (flags[id]! & TokenFlag.endOfGeneration) !== 0);
    expect(ends).toEqual([2, 6]);
    expect(flags[300]).toBe(0);
  });

  test("a text that cannot fit is refused before it costs anything", async () => {
    const start = performance.now();
    const error = await rejection(tokenize("a".repeat(8 << 20)));
    expect(error.code).toBe("context_length_exceeded");
    expect(performance.now() - start).toBeLessThan(200);
  });
});

test("embeddings repeat, differ by text, and check their input", async () => {
  const signal = AbortSignal.timeout(20_000);
  const [a, b, again] = await Promise.all([
    engine.embedding.embed(Uint32Array.from([1, 300, 301]), signal),
    engine.embedding.embed(Uint32Array.from([1, 400, 401]), signal),
    engine.embedding.embed(Uint32Array.from([1, 300, 301]), signal),
  ]);
  expect(a).toHaveLength(64);
  expect(again).toEqual(a);
  expect(b).not.toEqual(a);
  expect((await rejection(engine.embedding.embed(new Uint32Array(5000), signal))).code).toBe("context_length_exceeded");
  expect((await rejection(engine.embedding.embed(Uint32Array.of(9999), signal))).code).toBe("invalid_value");
  await expect(engine.embedding.embed(Uint32Array.of(1), AbortSignal.abort(new Error("gone")))).rejects.toThrow("gone");
});

test("drain lets running requests end and refuses new ones; close is idempotent and ends what runs", async () => {
  const own = await createLlamaEngine(
    { modelPath: builtinModel, name: "own", sequences: 2 },
    AbortSignal.timeout(30_000),
  );
  const stop = { maxTokens: 100, ignoreEos: true };
  const running = answer(own, request(prompt, { stop }));
  await until(() => own.loads().running === 1);
  const drained = own.drain(AbortSignal.timeout(20_000));
  expect((await rejection(answer(own, request(prompt)))).code).toBe("draining");
  expect(await own.health("liveness", AbortSignal.timeout(1000))).toEqual({ state: "draining" });
  await drained;
  expect((await running).tokens).toHaveLength(100);

  await Promise.all([own.close(), own.close()]);
  expect((await own.health("liveness", AbortSignal.timeout(1000))).state).toBe("unhealthy");
  expect((await rejection(answer(own, request(prompt)))).code).toBe("draining");
});

test("close ends a running stream", async () => {
  const own = await createLlamaEngine(
    { modelPath: builtinModel, name: "own", sequences: 2 },
    AbortSignal.timeout(30_000),
  );
  const running = answer(own, request(prompt, { stop: { maxTokens: 4000, ignoreEos: true } }));
  await until(() => own.loads().running === 1);
  await own.close();
  expect((await running).finish.reason).toBe("abort");
});

test("a model that cannot be loaded is a clear error", async () => {
  const error = await rejection(
    createLlamaEngine({ modelPath: "/no/such.gguf", name: "x" }, AbortSignal.timeout(5000)),
  );
  expect(error).toMatchObject({ code: "model_unavailable" });
  expect(error.message).toContain("/no/such.gguf");
});

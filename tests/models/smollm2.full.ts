import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { Tokenizer } from "@huggingface/tokenizers";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createLlamaEngine, type LlamaEngine } from "../../src/engines/llama/index.ts";
import { answer, concurrently, request, type ShortRequest } from "../../src/engines/llama/testing.contract.ts";
import { readGguf } from "../../src/model-files/index.ts";
import { tokenBytes } from "../../src/protocol/index.ts";
import { tokenizerJsonFromGguf } from "./tokenizer-json-from-gguf.ts";

let modelPath: string;
let engine: LlamaEngine;

const load = (flashAttention?: boolean): Promise<LlamaEngine> =>
  createLlamaEngine(
    {
      modelPath,
      name: "smollm2",
      contextLength: 2048,
      ...(flashAttention === undefined ? {} : { flashAttention }),
    },
    AbortSignal.timeout(60_000),
  );

beforeAll(async () => {
  const script = fileURLToPath(new URL("../../tools/fetch-smollm2.mjs", import.meta.url));
  modelPath = execFileSync(process.execPath, [script], { encoding: "utf8" }).trim();
  engine = await load(false);
}, 600_000);

afterAll(() => engine?.close());

const tokenize = (text: string) =>
  engine.tokenizing.tokenize(text, { addSpecial: false, parseSpecial: true }, AbortSignal.timeout(10_000));
const chat = (user: string): Promise<Uint32Array> =>
  tokenize(
    `<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n${user}<|im_end|>\n<|im_start|>assistant\n`,
  );
const textOf = (tokens: Iterable<number>): string => {
  const table = engine.tokenizing.tokenTable();
  return Buffer.concat(Array.from(tokens, (token) => tokenBytes(table, token))).toString("utf8");
};
const ask = async (user: string, short: ShortRequest = {}) => answer(engine, request(await chat(user), short));

// Only what the model is sure of: kernels differ from CPU to CPU, and a near tie falls one way here, the other way there.
test("a completion and a chat get sensible English answers", async () => {
  const fact = await answer(engine, request(await tokenize("The capital of France is"), { stop: { maxTokens: 1 } }));
  expect(textOf(fact.tokens)).toBe(" Paris");
  const { tokens, finish } = await ask("Repeat: Paris is the capital of France.", { stop: { maxTokens: 60 } });
  expect(textOf(tokens)).toContain("Paris is the capital");
  expect(finish.reason).toBe("stop");
}, 60_000);

test("a JSON schema is followed", async () => {
  const schema = {
    type: "object",
    properties: {
      city: { type: "string", maxLength: 30 },
      country: { enum: ["France", "Italy", "Spain"] },
      population: { type: "integer", minimum: 0 },
      sights: { type: "array", items: { type: "string", maxLength: 30 }, minItems: 1, maxItems: 3 },
    },
    required: ["city", "country", "population"],
    additionalProperties: false,
  };
  const { tokens, finish } = await ask("Describe Paris as JSON.", {
    grammar: { kind: "json_schema", schema: JSON.stringify(schema) },
    stop: { maxTokens: 400 },
  });
  expect(finish.reason).toBe("stop");
  const value = JSON.parse(textOf(tokens)) as Record<string, unknown>;
  expect(value).toMatchObject({ country: "France" });
  expect(Number.isSafeInteger(value.population)).toBe(true);
}, 120_000);

test("an abort during a long prefill takes effect within a second", async () => {
  const long = await chat("Tell me about the sea. ".repeat(300));
  expect(long.length).toBeGreaterThan(1000);
  const neighbours = new AbortController();
  const others = [1, 2, 3].map((n) => answer(engine, request([n, ...long]), neighbours.signal));
  const controller = new AbortController();
  const own = answer(engine, request(long), controller.signal);
  while (engine.loads().running < 4) await new Promise((resolve) => setImmediate(resolve));
  await new Promise((resolve) => setTimeout(resolve, 500)); // well inside the prefill of all four
  controller.abort();
  const start = performance.now();
  expect((await own).finish.reason).toBe("abort");
  const tookMs = performance.now() - start;
  neighbours.abort();
  await Promise.all(others);
  process.stdout.write(`SmolLM2: abort in a prefill with three neighbours took ${Math.round(tookMs)} ms.\n`);
  expect(tookMs).toBeLessThan(1000);
}, 60_000);

test("with flash attention off, the share of equal greedy runs is reported", async () => {
  const questions = [
    "Name three colours.",
    "What is water?",
    "Why is the sky blue?",
    "Count to ten.",
    "Who was Newton?",
  ];
  const prompts = await Promise.all([...questions, ...questions.map((text) => `${text} Be brief.`)].map(chat));
  const run = async (target: LlamaEngine, prompt: Uint32Array) =>
    (await answer(target, request(prompt, { stop: { maxTokens: 40 } }))).tokens;
  const alone: number[][] = [];
  for (const prompt of prompts) {
    const fresh = await load(false);
    alone.push(await run(fresh, prompt));
    await fresh.close();
  }
  const together = await concurrently(prompts, 4, (prompt) => run(engine, prompt));
  const equal = together.filter((tokens, index) => String(tokens) === String(alone[index])).length;
  process.stdout.write(
    `SmolLM2, flash attention off: ${equal} of ${prompts.length} concurrent greedy runs equal the run alone.\n`,
  );
  // Q4_1 promises nothing bit for bit; but most runs being different would be a defect of ours.
  expect(equal).toBeGreaterThanOrEqual(prompts.length / 2);
}, 300_000);

describe("a tokenizer.json derived from the GGUF", () => {
  let derived: Tokenizer;
  beforeAll(async () => {
    derived = new Tokenizer(tokenizerJsonFromGguf(await readGguf(modelPath)), {});
  });

  test.each([
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three",
    "a\nb\n\nc\r\nd\te",
    "don't can't we'll I'm you've they'd it's",
    "DON'T CAN'T",
    "12345 3.14159 1,000,000 0x1F",
    "2024-01-01T00:00:00Z",
    "naïve café Zürich",
    "Straße ÄÖÜ",
    "Привет, мир",
    "Γειά σου",
    "你好，世界",
    "こんにちは世界",
    "안녕하세요",
    "مرحبا بالعالم",
    "שלום",
    "😀😃👍🏽👨‍👩‍👧‍👦",
    "e\u0301 combining",
    "zero\u200bwidth",
    "non\u00a0breaking",
    "\u3000ideographic space",
    "٣٤٥ Ⅷ ½ ²",
    "function f(x) { return x ** 2; } // comment",
    '{"key": [1, 2.5, null, "va\\"lue"]}',
    "<html><body class='x'>&amp;</body></html>",
    "SELECT * FROM t WHERE a >= 1;",
    "\\frac{a}{b} $x^2$",
    "____ ---- ==== ....",
    "CamelCaseWord snake_case_word kebab-case-word",
    "https://example.com/path?query=1#fragment",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more",
    "<|im_start|><|im_end|>",
    "not <|special|> here",
    "\u0000\u0001\u007f",
    "",
  ])("agrees with llama.cpp on %j", async (text) => {
    const ours = Array.from(await tokenize(text));
    expect(ours).toEqual(Array.from(derived.encode(text, { add_special_tokens: false }).ids, Number));
    expect(textOf(ours)).toBe(text);
  });
});

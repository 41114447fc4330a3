import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createLlamaEngine, type LlamaEngineOptions } from "../../src/engines/llama/index.ts";
import { SequenceText } from "../../src/frontend/postprocess/sequence-text.ts";
import { seededRandom } from "../../src/protocol/random.ts";
import { readStream } from "../harness/sse.ts";
import { StatorServer, temporaryFolder } from "../harness/stator-process.ts";

/*
 * Greedy text through the whole stack, 8 requests at a time over two workers, against the engine's own run, one request
 * at a time in a fresh engine. Any mixed-up or lost KV, token or byte shows.
 */

const CONCURRENCY = 8;
const never = new AbortController().signal;

interface Case {
  readonly modelPath: string;
  readonly serveArgs: readonly string[];
  readonly engine: Partial<LlamaEngineOptions>;
  readonly prompts: readonly string[];
  readonly maxTokens: number;
}

/** Prompts of very different length; some share a long beginning, so that prefixes are reused. */
function makePrompts(count: number, longest: number): string[] {
  const random = seededRandom(42);
  const words = [
    "river",
    "stone",
    "the",
    "of",
    "light",
    "seven",
    "and",
    "moves",
    "under",
    "a",
    "quiet",
    "engine",
    "was",
    "I",
  ];
  const text = (length: number) => Array.from({ length }, () => words[random.below(words.length)]).join(" ");
  const shared = text(Math.floor(longest / 3));
  return Array.from({ length: count }, (_, i) => {
    const own = text(1 + random.below(longest));
    return i % 3 === 0 ? `${shared} ${own.slice(0, Math.ceil(own.length / 2))}` : own;
  });
}

async function alone({ modelPath, engine: options, prompts, maxTokens }: Case): Promise<string[]> {
  const engine = await createLlamaEngine(
    { modelPath, name: "m", threads: 1, flashAttention: false, ...options },
    never,
  );
  const table = engine.tokenizing!.tokenTable();
  const texts: string[] = [];
  try {
    for (const [i, prompt] of prompts.entries()) {
      const tokens = await engine.tokenizing!.tokenize(prompt, { addSpecial: true, parseSpecial: true }, never);
      const text = new SequenceText(table, { stop: [], includeStop: false, skipSpecial: true });
      let whole = "";
      const stream = engine.generate(
        {
          requestId: `alone-${i}`,
          model: "m",
          tokens,
          sampling: {
            temperature: 0,
            topP: 1,
            topK: 0,
            minP: 0,
            presencePenalty: 0,
            frequencyPenalty: 0,
            repetitionPenalty: 1,
          },
          stop: { maxTokens, minTokens: 0, stopTokenIds: [], ignoreEos: false },
          timeoutMs: 60_000,
        },
        never,
      );
      for await (const delta of stream) whole += text.push(delta.tokens);
      texts.push(whole + text.finish());
    }
  } finally {
    await engine.close();
  }
  return texts;
}

async function throughTheStack({ serveArgs, prompts, maxTokens }: Case, stream: boolean): Promise<string[]> {
  const server = await StatorServer.serve([...serveArgs, "--workers", "2", "--model-name", "m", "--log-level", "warn"]);
  const texts = new Array<string>(prompts.length);
  let next = 0;
  try {
    await Promise.all(
      Array.from({ length: CONCURRENCY }, async () => {
        while (next < prompts.length) {
          const i = next++;
          const body = { model: "m", prompt: prompts[i], max_tokens: maxTokens, temperature: 0, stream };
          const response = await server.post("/v1/completions", body);
          if (stream) {
            const read = await readStream(response);
            expect(read.error).toBeUndefined();
            texts[i] = read.text;
          } else {
            const answer = (await response.json()) as { choices: { text: string }[] };
            texts[i] = answer.choices[0]!.text;
          }
        }
      }),
    );
  } finally {
    await server.stop();
  }
  return texts;
}

describe("exactness through the whole stack", () => {
  it("built-in model (q8_0, flash attention off): 100 of 100, streamed and unary", async () => {
    const test: Case = {
      modelPath: "models/builtin.gguf",
      serveArgs: [],
      engine: {},
      prompts: makePrompts(100, 400),
      maxTokens: 48,
    };
    const expected = await alone(test);
    expect(new Set(expected).size).toBeGreaterThan(90); // the prompts matter
    expect(await throughTheStack(test, true)).toEqual(expected);
    expect(await throughTheStack(test, false)).toEqual(expected);
  }, 300_000);

  it("F32 weights and F32 KV: 100 of 100, streamed and unary", async () => {
    const modelPath = join(temporaryFolder(), "f32.gguf");
    const made = spawnSync(process.execPath, ["tools/make-random-gguf.mjs", "--type", "f32", "--out", modelPath], {
      encoding: "utf8",
    });
    expect(made.status, made.stderr).toBe(0);
    const test: Case = {
      modelPath,
      serveArgs: ["--model", modelPath, "--set", "engine.flashAttention=off", "--set", "engine.kvType=f32"],
      engine: { kvType: "f32" },
      prompts: makePrompts(100, 400),
      maxTokens: 48,
    };
    const expected = await alone(test);
    expect(await throughTheStack(test, true)).toEqual(expected);
    expect(await throughTheStack(test, false)).toEqual(expected);
  }, 300_000);

  it("SmolLM2 with flash attention off: the share of equal runs is reported", async () => {
    const found = spawnSync(process.execPath, ["tools/fetch-smollm2.mjs"], { encoding: "utf8" });
    expect(found.status, found.stderr).toBe(0);
    const modelPath = found.stdout.trim().split("\n").at(-1)!;
    const test: Case = {
      modelPath,
      serveArgs: ["--model", modelPath, "--set", "engine.flashAttention=off"],
      engine: {},
      prompts: makePrompts(40, 120),
      maxTokens: 16,
    };
    const expected = await alone(test);
    const got = await throughTheStack(test, true);
    const equal = got.filter((text, i) => text === expected[i]).length;
    process.stdout.write(
      `SmolLM2 Q4_1, flash attention off, concurrency ${CONCURRENCY}: ${equal} of ${expected.length} runs equal the engine alone\n`,
    );
    // Q4_1 is not promised to be exact; but most runs must agree, or something else is wrong.
    expect(equal).toBeGreaterThan(expected.length / 2);
    expect(got.every((text) => text.length > 0)).toBe(true);
  }, 600_000);
});

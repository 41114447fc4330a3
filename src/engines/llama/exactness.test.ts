import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createLlamaEngine, type LlamaEngine } from "./index.ts";
import { answer, builtinModel, concurrently, request, variedPrompts } from "./testing.contract.ts";

const prompts = variedPrompts(20);
const folder = mkdtempSync(join(tmpdir(), "stator-exactness-"));
const f32Model = join(folder, "f32.gguf");

beforeAll(() => {
  const script = fileURLToPath(new URL("../../../tools/make-random-gguf.mjs", import.meta.url));
  execFileSync(process.execPath, [script, "--type", "f32", "--out", f32Model]);
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe.each([
  { name: "builtin (q8_0)", modelPath: () => builtinModel, kvType: "f16" as const },
  { name: "F32 weights and KV", modelPath: () => f32Model, kvType: "f32" as const },
])("greedy output of $name", ({ modelPath, kvType }) => {
  const load = (sequences = 4): Promise<LlamaEngine> =>
    createLlamaEngine(
      { modelPath: modelPath(), name: "test", flashAttention: false, kvType, contextLength: 1024, sequences },
      AbortSignal.timeout(30_000),
    );
  const run = (engine: LlamaEngine, tokens: Iterable<number>) =>
    answer(engine, request(tokens, { stop: { maxTokens: 60 } }));

  /** One sequence whose cache is emptied by a prompt that begins differently: as good as a fresh engine, and quicker. */
  const runAlone = async (engine: LlamaEngine, tokens: Iterable<number>): Promise<number[]> => {
    await answer(engine, request([2, 2], { stop: { maxTokens: 1 } }));
    const alone = await run(engine, tokens);
    expect(alone.finish.usage.cachedTokens).toBe(0);
    return alone.tokens;
  };

  test("does not depend on neighbours, nor on what the cache holds", async () => {
    const [single, shared] = [await load(1), await load()];
    try {
      const alone: number[][] = [];
      for (const prompt of prompts) alone.push(await runAlone(single, prompt));
      expect(new Set(alone.map(String)).size, "the prompts matter").toBeGreaterThan(15);
      for (const index of [0, 7]) {
        const fresh = await load();
        expect((await run(fresh, prompts[index]!)).tokens).toEqual(alone[index]);
        await fresh.close();
      }
      // What differs, and from where on: a difference that comes once in a thousand runs must say enough at once.
      const differences = async (order: readonly number[], limit: number): Promise<string[]> => {
        const answers = await concurrently(order, limit, (index) => run(shared, prompts[index]!));
        return answers.flatMap(({ tokens, finish }, place) => {
          const index = order[place]!;
          if (String(tokens) === String(alone[index])) return [];
          const at = tokens.findIndex((token, i) => token !== alone[index]![i]);
          const { promptTokens, cachedTokens } = finish.usage;
          return `prompt ${index} (${promptTokens} tokens, ${cachedTokens} cached) differs at ${at} of ${tokens.length}`;
        });
      };
      const inOrder = Array.from(prompts.keys());
      expect(await differences(inOrder, 4)).toEqual([]);
      // A second time: now the cache holds most prompts, and staggered starts mix prefill with generation.
      expect(await differences(inOrder, 3)).toEqual([]);
      expect(await differences(inOrder.toReversed(), 4)).toEqual([]);
    } finally {
      await Promise.all([single.close(), shared.close()]);
    }
  });

  test("does not depend on where another engine takes it up, whatever else runs there", async () => {
    const [single, shared] = [await load(1), await load()];
    try {
      const alone: number[][] = [];
      for (const prompt of prompts) alone.push(await runAlone(single, prompt));
      const resumed = await concurrently(Array.from(prompts.keys()), 4, async (index) => {
        const tokens = alone[index]!;
        const generated = Uint32Array.from(tokens.slice(0, (index * 7) % tokens.length));
        const { tokens: rest } = await answer(shared, request(prompts[index]!, { stop: { maxTokens: 60 }, generated }));
        return [...generated, ...rest];
      });
      expect(resumed).toEqual(alone);
    } finally {
      await Promise.all([single.close(), shared.close()]);
    }
  });

  test("does not depend on reuse of a conversation", async () => {
    const [single, shared] = [await load(1), await load()];
    try {
      let cached = 0;
      for (const prompt of prompts.slice(0, 4)) {
        let conversation = Array.from(prompt);
        for (let turn = 0; turn < 4; turn++) {
          const reused = await run(shared, conversation);
          expect(reused.tokens).toEqual(await runAlone(single, conversation));
          cached += reused.finish.usage.cachedTokens;
          conversation = [...conversation, ...reused.tokens, 6, 4, ...prompts[turn]!.subarray(2, 9), 6, 5];
        }
      }
      expect(cached).toBeGreaterThan(1000);
    } finally {
      await Promise.all([single.close(), shared.close()]);
    }
  });
});

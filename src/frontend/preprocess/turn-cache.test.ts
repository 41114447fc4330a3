import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { buildTokenTable, TokenFlag } from "../../protocol/token-table.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { TurnCache } from "./turn-cache.ts";

const encoder = new TextEncoder();
const specials = ["<|start|>", "<|end|>"];
const table = buildTokenTable([
  ...Array.from({ length: 256 }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })),
  ...specials.map((text) => ({ bytes: encoder.encode(text), flags: TokenFlag.special })),
]);

/** Bytes, but pairs of equal bytes merge within a stretch between special tokens; white space before `<|end|>` is eaten. */
function mergingTokenizer(): Tokenizer & { encoded: number } {
  return {
    table,
    encoded: 0,
    encode(text) {
      this.encoded += text.length;
      const ids: number[] = [];
      for (const part of text.split(/(\s*<\|end\|>|<\|start\|>)/)) {
        const special = specials.indexOf(part.trim());
        if (special >= 0) {
          ids.push(256 + special);
          continue;
        }
        const bytes = encoder.encode(part);
        for (let i = 0; i < bytes.length; i++) {
          if (bytes[i] === bytes[i + 1]) ids.push(1000 + bytes[i++]!);
          else ids.push(bytes[i]!);
        }
      }
      return Promise.resolve(Uint32Array.from(ids));
    },
    close: () => Promise.resolve(),
  };
}

const chat = { addSpecial: false, parseSpecial: true };
const never = new AbortController().signal;
const turn = fc
  .tuple(
    fc.constantFrom("user", "assistant"),
    fc.string({ unit: fc.constantFrom("a", "b", " ", "\n", "<|end|>"), maxLength: 400 }),
  )
  .map(([role, text]) => `<|start|>${role}\n${text}<|end|>\n`);

describe("TurnCache", () => {
  it("equals tokenizing whole, for any growing conversation", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(turn, { minLength: 1, maxLength: 12 }), async (turns) => {
        const cache = new TurnCache(mergingTokenizer());
        const plain = mergingTokenizer();
        let conversation = "";
        for (const next of turns) {
          conversation += next;
          const prompt = `${conversation}<|start|>assistant\n`;
          expect(await cache.encode(prompt, chat, never)).toEqual(await plain.encode(prompt, chat, never));
        }
      }),
      { numRuns: 300 },
    );
  });

  it("tokenizes only what is new", async () => {
    const inner = mergingTokenizer();
    const cache = new TurnCache(inner);
    const first = `<|start|>user\n${"abc".repeat(1000)}<|end|>\n`;
    await cache.encode(`${first}<|start|>assistant\n`, chat, never);
    inner.encoded = 0;
    await cache.encode(
      `${first}<|start|>assistant\nyes<|end|>\n<|start|>user\nmore<|end|>\n<|start|>assistant\n`,
      chat,
      never,
    );
    expect(inner.encoded).toBeLessThan(120);
    expect(cache.hits).toBe(1);
  });

  it("stays within its memory", async () => {
    const inner = mergingTokenizer();
    const cache = new TurnCache(inner, 100_000);
    for (let i = 0; i < 50; i++) await cache.encode(`<|start|>${i} ${"x y".repeat(500)}<|end|>\n`, chat, never);
    await cache.encode(`<|start|>0 ${"x y".repeat(500)}<|end|>\n`, chat, never);
    expect(cache.hits).toBe(0);
    await cache.encode(`<|start|>49 ${"x y".repeat(500)}<|end|>\n`, chat, never);
    expect(cache.hits).toBe(1);
  });
});

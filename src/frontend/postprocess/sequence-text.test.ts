import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { buildTokenTable, TokenFlag } from "../../protocol/token-table.ts";
import { SequenceText } from "./sequence-text.ts";
import { tokenText } from "./token-text.ts";
import { Utf8Joiner } from "./utf8-joiner.ts";

const encoder = new TextEncoder();
const bytesTable = buildTokenTable([
  ...Array.from({ length: 256 }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })),
  { bytes: encoder.encode("<|end|>"), flags: TokenFlag.special | TokenFlag.endOfGeneration },
  { bytes: encoder.encode("ab"), flags: 0 },
  { bytes: encoder.encode("€a"), flags: 0 },
]);

const options = { stop: [] as string[], includeStop: false, skipSpecial: true };

function run(pieces: readonly number[][], overrides: Partial<typeof options & { minTokens: number }>) {
  const text = new SequenceText(bytesTable, { ...options, ...overrides });
  const emitted = pieces.map((piece) => text.push(Uint32Array.from(piece)));
  const tail = text.finish();
  return { emitted, whole: emitted.join("") + tail, stopped: text.stopped };
}

/** What a reader of the whole text would cut: the stop string that ends first, the longest of those. */
function oracle(
  text: string,
  stops: readonly string[],
  includeStop: boolean,
): { whole: string; stopped: string | undefined } {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.filter((stop) => text.slice(0, end).endsWith(stop)).sort((a, b) => b.length - a.length);
    const stop = ending[0];
    if (stop !== undefined) return { whole: text.slice(0, includeStop ? end : end - stop.length), stopped: stop };
  }
  return { whole: text, stopped: undefined };
}

/** Bytes cut into pieces of tokens. */
const cutBytes = (bytes: fc.Arbitrary<Uint8Array>) =>
  fc.tuple(bytes, fc.array(fc.integer({ min: 1, max: 5 }), { maxLength: 30 })).map(([all, sizes]) => {
    const pieces: number[][] = [];
    let at = 0;
    for (const size of sizes) {
      if (at >= all.length) break;
      pieces.push(Array.from(all.subarray(at, at + size)));
      at += size;
    }
    if (at < all.length) pieces.push(Array.from(all.subarray(at)));
    return { all, pieces };
  });

describe("SequenceText", () => {
  it("equals a decoder of the whole byte string, for any bytes in any pieces", () => {
    fc.assert(
      fc.property(cutBytes(fc.uint8Array({ maxLength: 60 })), ({ all, pieces }) => {
        expect(run(pieces, {}).whole).toBe(new TextDecoder("utf-8", { ignoreBOM: true }).decode(all));
      }),
      { numRuns: 2000 },
    );
  });

  it("never emits half a character", () => {
    fc.assert(
      fc.property(
        cutBytes(
          fc.string({ unit: "grapheme", maxLength: 20 }).map((text) => encoder.encode(text.replaceAll("\ufffd", ""))), // the mark of a broken character
        ),
        ({ all, pieces }) => {
          const { emitted, whole } = run(pieces, {});
          expect(emitted.join("")).not.toContain("\ufffd");
          expect(whole).toBe(new TextDecoder("utf-8", { ignoreBOM: true }).decode(all));
        },
      ),
    );
  });

  it("cuts at stop strings exactly as an oracle on the whole text, and never emits what it removes", () => {
    const small = fc.string({ unit: fc.constantFrom("a", "b", "c", "€", "😀"), maxLength: 24 });
    const stop = fc.string({ unit: fc.constantFrom("a", "b", "c", "€", "😀"), minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(
        cutBytes(small.map((text) => encoder.encode(text))),
        fc.array(stop, { minLength: 1, maxLength: 4 }),
        fc.boolean(),
        ({ all, pieces }, stops, includeStop) => {
          const result = run(pieces, { stop: stops, includeStop });
          const expected = oracle(new TextDecoder().decode(all), stops, includeStop);
          expect({ whole: result.whole, stopped: result.stopped }).toEqual(expected);
        },
      ),
      { numRuns: 3000 },
    );
  });

  it("holds back no longer than needed", () => {
    const text = new SequenceText(bytesTable, { ...options, stop: ["END"] });
    expect(text.push(Uint32Array.from(encoder.encode("xE")))).toBe("x");
    expect(text.holding).toBe(true);
    expect(text.push(Uint32Array.from(encoder.encode("x")))).toBe("Ex");
    expect(text.holding).toBe(false);
  });

  it("hides special tokens unless asked, and ignores ids outside the vocabulary", () => {
    expect(run([[97, 256, 98, 4_000_000]], {}).whole).toBe("ab");
    expect(run([[97, 256, 98]], { skipSpecial: false }).whole).toBe("a<|end|>b");
  });

  it("decodes a token of whole characters after a broken one", () => {
    expect(run([[0xe2, 258]], {}).whole).toBe("\ufffd€a");
  });

  it("does not match stop strings within the first minTokens tokens", () => {
    expect(run([[97], [98], [97], [98]], { stop: ["ab"], minTokens: 2 })).toMatchObject({ whole: "ab", stopped: "ab" });
  });
});

describe("Utf8Joiner", () => {
  it("emits what cannot become a character at once", () => {
    const joiner = new Utf8Joiner();
    expect(joiner.push(Uint8Array.of(0xe2, 0x82))).toBe("");
    expect(joiner.push(Uint8Array.of(0x41))).toBe("\ufffdA");
    expect(joiner.push(Uint8Array.of(0xed, 0xa0))).toBe("\ufffd\ufffd");
    expect(joiner.idle).toBe(true);
  });
});

describe("tokenText", () => {
  it("gives exact bytes beside a readable text", () => {
    expect(tokenText(bytesTable, 0xe2)).toEqual({ token: "\ufffd", bytes: [0xe2] });
    expect(tokenText(bytesTable, 257)).toEqual({ token: "ab", bytes: [97, 98] });
  });
});

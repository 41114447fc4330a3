import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { StatorError, TokenFlag, tokenBytes } from "../protocol/index.ts";
import { NeedMoreBytes, parameterCount, parseGguf, readGguf } from "./gguf.ts";
import { byteOfCharacter } from "./piece-bytes.ts";
import { tokenTableFromGguf } from "./token-table-from-gguf.ts";
import { weightsDigest } from "./weights-digest.ts";

const builtinPath = fileURLToPath(new URL("../../models/builtin.gguf", import.meta.url));
const builtin = readFileSync(builtinPath);
const script = fileURLToPath(new URL("../../tools/make-random-gguf.mjs", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "stator-gguf-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const string = (text: string): Buffer => {
  const bytes = Buffer.from(text, "utf8");
  return Buffer.concat([u64(bytes.length), bytes]);
};
const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const u64 = (value: number | bigint): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const head = (tensors: number | bigint, pairs: number | bigint, ...rest: Buffer[]): Buffer =>
  Buffer.concat([Buffer.from("GGUF"), u32(3), u64(tensors), u64(pairs), ...rest]);

describe("tools/make-random-gguf.mjs", () => {
  test("writes models/builtin.gguf byte for byte", () => {
    const out = join(folder, "again.gguf");
    execFileSync(process.execPath, [script, "--out", out]);
    expect(readFileSync(out).equals(builtin)).toBe(true);
  });

  test("another seed gives other weights, f32 the same ones unquantised", async () => {
    const other = join(folder, "other.gguf");
    execFileSync(process.execPath, [script, "--seed", "1", "--out", other]);
    expect(readFileSync(other).equals(builtin)).toBe(false);
    const f32 = join(folder, "f32.gguf");
    execFileSync(process.execPath, [script, "--type", "f32", "--out", f32]);
    const [quantised, plain] = [await readGguf(builtinPath), await readGguf(f32)];
    expect(plain.tensors.map(({ name }) => name)).toEqual(quantised.tensors.map(({ name }) => name));
    expect(new Set(plain.tensors.map(({ type }) => type))).toEqual(new Set([0]));
    expect(new Set(quantised.tensors.map(({ type }) => type))).toEqual(new Set([0, 8]));
  });
});

describe("readGguf", () => {
  test("reads metadata and tensors of the built-in model", async () => {
    const header = await readGguf(builtinPath);
    expect(header.metadata.get("general.architecture")).toBe("llama");
    expect(header.metadata.get("llama.context_length")).toBe(4096);
    expect(header.metadata.get("tokenizer.ggml.add_space_prefix")).toBe(false);
    expect(header.tensors).toHaveLength(39);
    expect(parameterCount(header)).toBeGreaterThan(800_000);
    expect(header.fileBytes).toBe(builtin.length);
  });

  test.each<[string, Buffer, string]>([
    ["empty", Buffer.alloc(0), "not a GGUF"],
    ["text", Buffer.from("hello"), "not a GGUF"],
    ["two bytes", Buffer.from("GG"), "ends in the middle"],
    ["cut", builtin.subarray(0, 3000), "ends in the middle"],
    ["version 1", Buffer.concat([Buffer.from("GGUF"), u32(1)]), "version 1"],
    ["too many tensors", head(1n << 40n, 0), "more than the limit"],
    ["too many pairs", head(0, 1n << 63n), "more than the limit"],
    ["a huge string", head(0, 1, u64(1n << 50n)), "more than the limit"],
    ["a huge array", head(0, 1, string("k"), u32(9), u32(4), u64(1n << 33n)), "more than the limit"],
    [
      "nested arrays",
      head(0, 1, string("k"), ...Array.from({ length: 9 }, () => [u32(9), u32(9), u64(1)]).flat()),
      "nested",
    ],
    ["unknown type", head(0, 1, string("k"), u32(99)), "type 99"],
    ["many dimensions", head(1, 0, string("t"), u32(1000)), "dimensions"],
  ])("refuses %s", async (name, bytes, message) => {
    const path = join(folder, `${name}.gguf`);
    writeFileSync(path, bytes);
    const error = await readGguf(path).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(StatorError);
    expect(error).toMatchObject({ code: "model_unavailable", message: expect.stringContaining(message) as string });
    expect((error as StatorError).message).toContain(path);
  });

  test("a header longer than the limit is refused", async () => {
    const error = await readGguf(builtinPath, { headerBytes: 1000 }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      code: "model_unavailable",
      message: expect.stringContaining("longer than 1000") as string,
    });
  });

  test("any damage gives an answer or an Error, never a hang or a crash", () => {
    const start = builtin.subarray(0, 20_000);
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(start.length - 1), fc.nat(255)), { minLength: 1, maxLength: 8 }),
        fc.nat(start.length),
        (damages, length) => {
          const bytes = Buffer.from(start);
          for (const [at, value] of damages) bytes[at] = value;
          try {
            parseGguf(bytes.subarray(0, length));
          } catch (error) {
            expect(error).toBeInstanceOf(Error);
            expect(error instanceof NeedMoreBytes || (error as Error).message !== "").toBe(true);
            expect(error).not.toBeInstanceOf(RangeError);
          }
        },
      ),
      { numRuns: 300 },
    );
  });
});

describe("tokenTableFromGguf", () => {
  const table = (model: string | undefined, tokens: string[], types: number[], more: [string, number][] = []) =>
    tokenTableFromGguf({
      metadata: new Map<string, string | number | string[] | number[]>([
        ...(model === undefined ? [] : ([["tokenizer.ggml.model", model]] as const)),
        ["tokenizer.ggml.tokens", tokens],
        ["tokenizer.ggml.token_type", types],
        ...more,
      ]),
    });
  const text = (made: ReturnType<typeof table>, id: number): string =>
    Buffer.from(tokenBytes(made, id)).toString("utf8");

  test("SentencePiece", () => {
    const made = table(
      "llama",
      ["<unk>", "</s>", "<0x0A>", "\u2581the", "é", "<|x|>"],
      [2, 3, 6, 1, 1, 3],
      [["tokenizer.ggml.eos_token_id", 1]],
    );
    expect([0, 1, 2, 3, 4, 5].map((id) => text(made, id))).toEqual(["<unk>", "</s>", "\n", " the", "é", "<|x|>"]);
    expect(Array.from(made.flags)).toEqual([TokenFlag.special, 3, 0, 0, 0, TokenFlag.special]);
  });

  test("byte-level BPE", () => {
    const made = table("gpt2", ["Ġthe", "Ċ", "Ã©", "<|im_end|>", "plain 語"], [1, 1, 1, 3, 4]);
    expect([0, 1, 2, 3, 4].map((id) => text(made, id))).toEqual([" the", "\n", "é", "<|im_end|>", "plain 語"]);
    expect(made.flags[3]).toBe(TokenFlag.special | TokenFlag.endOfGeneration);
    expect(new Set(byteOfCharacter.values()).size).toBe(256);
  });

  test("other tokenizers and missing vocabularies are refused", () => {
    expect(() => table("bert", ["a"], [1])).toThrow(/"bert"/);
    expect(() => table(undefined, ["a"], [1])).toThrow(/missing/);
    expect(() => table("llama", [], [])).toThrow(/vocabulary/);
  });
});

test("a weights digest is cached by size and time, and a blob's name is trusted", async () => {
  const path = join(folder, "weights.bin");
  const cacheFile = join(folder, "cache", "digests.json");
  writeFileSync(path, "one");
  const first = await weightsDigest(path, { cacheFile });
  expect(first).toBe("7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
  const known = JSON.parse(readFileSync(cacheFile, "utf8")) as Record<string, string>;
  writeFileSync(cacheFile, JSON.stringify(Object.fromEntries(Object.keys(known).map((key) => [key, "f".repeat(64)]))));
  expect(await weightsDigest(path, { cacheFile })).toBe("f".repeat(64));
  writeFileSync(path, "other");
  expect(await weightsDigest(path, { cacheFile })).not.toBe("f".repeat(64));
  writeFileSync(cacheFile, "not json");
  expect(await weightsDigest(path, { cacheFile })).toMatch(/^[0-9a-f]{64}$/);
  const blob = join(folder, "a".repeat(64));
  writeFileSync(blob, "whatever");
  expect(await weightsDigest(blob)).toBe("a".repeat(64));
});

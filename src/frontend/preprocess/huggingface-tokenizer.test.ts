import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { pino } from "pino";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { byteOfCharacter } from "../../model-files/piece-bytes.ts";
import { tokenBytes } from "../../protocol/token-table.ts";
import { MemoryNetwork, MemoryRequestPlaneClient } from "../../runtime/request-plane/memory.ts";
import { Inhibitions } from "../models/inhibitions.ts";
import { ServedModel } from "../models/served-model.ts";
import { SequenceText } from "../postprocess/sequence-text.ts";
import { testCard } from "../test-frontend.contract.ts";
import { HuggingFaceTokenizer } from "./huggingface-tokenizer.ts";

const options = { addSpecial: false, parseSpecial: true };
const never = new AbortController().signal;

/** Byte-level BPE over single bytes, two merges, one special token. */
function tinyTokenizerJson(): object {
  const alphabet = [...byteOfCharacter.keys()];
  const vocab = Object.fromEntries([...alphabet, "th", "the"].map((piece, id) => [piece, id]));
  return {
    version: "1.0",
    added_tokens: [
      {
        id: 258,
        content: "<|end|>",
        special: true,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
      },
    ],
    normalizer: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      vocab,
      merges: [
        ["t", "h"],
        ["th", "e"],
      ],
      unk_token: null,
      byte_fallback: false,
      fuse_unk: false,
    },
  };
}

describe("HuggingFaceTokenizer", () => {
  let folder: string;
  let tokenizer: HuggingFaceTokenizer;
  const write = (name: string, content: string): string => {
    const path = join(folder, name);
    writeFileSync(path, content);
    return path;
  };

  afterEach(() => vi.restoreAllMocks());
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "stator-tokenizer-"));
    tokenizer = await HuggingFaceTokenizer.load(
      write("tokenizer.json", JSON.stringify(tinyTokenizerJson())),
      AbortSignal.timeout(20_000),
    );
  });
  afterAll(async () => {
    await tokenizer.close();
    rmSync(folder, { recursive: true });
  });

  it("encodes in its thread, and its table brings the text back", async () => {
    const text = "the öther 🙂<|end|>they";
    const tokens = await tokenizer.encode(text, options, never);
    expect(tokens).toContain(257);
    expect(tokens).toContain(258);
    const back = new SequenceText(tokenizer.table, { stop: [], includeStop: false, skipSpecial: false });
    expect(back.push(tokens) + back.finish()).toBe(text);
    expect(Buffer.from(tokenBytes(tokenizer.table, 257)).toString()).toBe("the");
  });

  it("keeps the event loop free while a long text is encoded", async () => {
    let turns = 0;
    const timer = setInterval(() => turns++, 1);
    await tokenizer.encode("some words and more of them ".repeat(20_000), options, never);
    clearInterval(timer);
    expect(turns).toBeGreaterThan(5);
  });

  it("stops waiting when the request is given up", async () => {
    const controller = new AbortController();
    const waiting = tokenizer.encode("word ".repeat(100_000), options, controller.signal);
    controller.abort();
    await expect(waiting).rejects.toMatchObject({ code: "client_closed" });
    expect((await tokenizer.encode("the", options, never)).length).toBe(1);
  });

  it.each([
    ["a missing file", () => join(folder, "nowhere.json"), /ENOENT/],
    ["no JSON", () => write("a.json", "{"), /JSON/],
    [
      "a WordPiece decoder",
      () => write("b.json", JSON.stringify({ ...tinyTokenizerJson(), decoder: { type: "WordPiece" } })),
      /WordPiece/,
    ],
  ])("says what is wrong with %s", async (_name, path, message) => {
    const loading = HuggingFaceTokenizer.load(path(), AbortSignal.timeout(20_000));
    await expect(loading).rejects.toMatchObject({ code: "not_ready" });
    await expect(loading).rejects.toThrow(message);
  });

  it("refuses after it was closed", async () => {
    const other = await HuggingFaceTokenizer.load(join(folder, "tokenizer.json"), AbortSignal.timeout(20_000));
    await other.close();
    await expect(other.encode("x", options, never)).rejects.toMatchObject({ code: "not_ready" });
  });

  it("is loaded again after its thread has died: one text costs no more than its neighbours", async () => {
    const plane = new MemoryRequestPlaneClient({ network: new MemoryNetwork() });
    const inhibitions = new Inhibitions(plane, pino({ level: "silent" }));
    const card = { ...testCard, tokenizer: { kind: "huggingface" as const, path: join(folder, "tokenizer.json") } };
    const model = new ServedModel(card, "digest", 1, plane, inhibitions);
    const encode = async () => (await model.tokenizer(never)).encode("the", options, never);
    const expected = await encode();
    vi.spyOn(Worker.prototype, "postMessage").mockImplementationOnce(function (this: Worker) {
      void this.terminate();
    });
    await expect(encode()).rejects.toMatchObject({ code: "internal_error" });
    expect(await encode()).toEqual(expected);
    await model.close();
    inhibitions.close();
    await plane.close();
  });
});

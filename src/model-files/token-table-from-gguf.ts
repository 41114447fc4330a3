import { buildTokenTable, StatorError, TokenFlag, type TokenTable } from "../protocol/index.ts";
import { type GgufHeader, ggufNumber, ggufString } from "./gguf.ts";
import { byteLevelBytes, sentencePieceBytes } from "./piece-bytes.ts";

/** `tokenizer.ggml.token_type`. */
const TokenType = { unknown: 2, control: 3, userDefined: 4, unused: 5 } as const;

/** Keys of tokens that end a turn or the text. */
const endKeys = ["eos_token_id", "eot_token_id", "eom_token_id"];

/** Texts that llama.cpp takes as end tokens when the metadata does not name them. */
const endTexts = new Set([
  "<|eot_id|>",
  "<|im_end|>",
  "<|end|>",
  "<end_of_turn>",
  "<|endoftext|>",
  "<|end_of_text|>",
  "<|eom_id|>",
  "<EOT>",
  "_<EOT>",
  "[EOT]",
  "[EOS]",
  "<｜end▁of▁sentence｜>",
  "<end_of_utterance>",
]);

/**
 * The bytes of every token of a GGUF vocabulary.
 *
 * - model `llama` (SentencePiece): U+2581 stands for a space, `<0xXX>` tokens for one byte;
 * - model `gpt2` (byte-level BPE): every character stands for one byte.
 *
 * Throws `model_unavailable` for other tokenizers and for damaged metadata.
 */
export function tokenTableFromGguf(header: Pick<GgufHeader, "metadata">): TokenTable {
  const model = ggufString(header, "tokenizer.ggml.model");
  if (model !== "llama" && model !== "gpt2") {
    throw new StatorError(
      "model_unavailable",
      `The model's tokenizer is ${model === undefined ? "missing" : `of kind "${model}"`}; "llama" and "gpt2" are supported.`,
    );
  }
  const texts = header.metadata.get("tokenizer.ggml.tokens");
  if (!isStrings(texts)) throw new StatorError("model_unavailable", "The model file has no vocabulary.");
  const types = header.metadata.get("tokenizer.ggml.token_type");
  const ends = new Set(endKeys.map((key) => ggufNumber(header, `tokenizer.ggml.${key}`)));
  const bytesOf = model === "llama" ? sentencePieceBytes : byteLevelBytes;

  return buildTokenTable(
    texts.map((text, id) => {
      const type = Array.isArray(types) ? types[id] : undefined;
      const special = type === TokenType.control || type === TokenType.unknown || type === TokenType.unused;
      const plain = special || type === TokenType.userDefined;
      const ended = ends.has(id) || (type === TokenType.control && endTexts.has(text));
      return {
        bytes: plain ? Buffer.from(text, "utf8") : bytesOf(text),
        flags: (special ? TokenFlag.special : 0) | (ended ? TokenFlag.endOfGeneration : 0),
      };
    }),
  );
}

function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "string");
}

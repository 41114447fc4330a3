import { type GgufHeader, ggufString } from "../../src/model-files/index.ts";

/**
 * A tokenizer.json with the vocabulary, merges and token types of a byte-level BPE GGUF whose pre-tokenizer is
 * `smollm` (GPT-2's pattern, every digit on its own). For tests: it shows that the two tokenizer implementations agree.
 */
export function tokenizerJsonFromGguf(header: GgufHeader): object {
  const pre = ggufString(header, "tokenizer.ggml.pre");
  if (ggufString(header, "tokenizer.ggml.model") !== "gpt2" || pre !== "smollm") {
    throw new Error(`No derivation is known for the pre-tokenizer ${pre}.`);
  }
  const tokens = header.metadata.get("tokenizer.ggml.tokens") as readonly string[];
  const types = header.metadata.get("tokenizer.ggml.token_type") as readonly number[];
  const merges = header.metadata.get("tokenizer.ggml.merges") as readonly string[];
  const control = 3;
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: tokens.flatMap((content, id) =>
      types[id] === control
        ? [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }]
        : [],
    ),
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        // Not `Digits`: @huggingface/tokenizers takes that for 0 to 9, llama.cpp for every numeral.
        { type: "Split", pattern: { Regex: "\\p{N}" }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: merges.map((merge) => merge.split(" ")),
    },
  };
}

import { longestToken, StatorError, type Tokenizing, type TokenTable } from "../../protocol/index.ts";
import type { Native } from "./native.ts";

/**
 * llama.cpp's tokenizer. It runs on the worker's thread, so a text that cannot fit into the context is refused before
 * it costs anything: n bytes are at least n / (longest token) tokens.
 */
export function createTokenizing(native: Native, table: TokenTable, contextLength: number): Tokenizing {
  const maxBytes = longestToken(table) * contextLength;
  const { model } = native;
  return {
    async tokenize(text, options, signal) {
      signal.throwIfAborted();
      const bytes = Buffer.byteLength(text);
      if (bytes > maxBytes) {
        throw new StatorError(
          "context_length_exceeded",
          `A text of ${bytes} bytes cannot fit into a context of ${contextLength} tokens.`,
          { param: "prompt" },
        );
      }
      const tokens: number[] = model.tokenize(text, options.parseSpecial);
      if (options.addSpecial) {
        const { bos, eos, shouldPrependBosToken, shouldAppendEosToken } = model.tokens;
        if (shouldPrependBosToken && bos !== null) tokens.unshift(bos);
        if (shouldAppendEosToken && eos !== null) tokens.push(eos);
      }
      return Uint32Array.from(tokens);
    },
    tokenTable: () => table,
  };
}

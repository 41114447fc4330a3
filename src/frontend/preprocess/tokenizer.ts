import type { TokenTable } from "../../protocol/token-table.ts";

/** Text to tokens, wherever that happens: here, in a thread, or in a worker. */
export interface Tokenizer {
  /**
   * `parseSpecial`: texts such as `<|im_end|>` become the special token (true after a chat template).
   * `addSpecial`: BOS/EOS as the model's metadata says (true for a plain prompt, false after a chat template).
   * Never blocks the event loop for long. Rejects with a StatorError.
   */
  encode(text: string, options: EncodeOptions, signal: AbortSignal): Promise<Uint32Array>;
  /** The bytes of each token: the way back to text. */
  readonly table: TokenTable;
  close(): Promise<void>;
}

export interface EncodeOptions {
  readonly addSpecial: boolean;
  readonly parseSpecial: boolean;
}

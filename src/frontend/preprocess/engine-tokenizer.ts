import { decodeTokens, decodeTokenTable, pack } from "../../protocol/codec.ts";
import { StatorError } from "../../protocol/errors.ts";
import { workerEndpoints } from "../../protocol/instance.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { EncodeOptions, Tokenizer } from "./tokenizer.ts";

/** Sends a unary call to some worker of the model. */
export type AskWorker = (endpoint: string, body: Uint8Array, signal: AbortSignal) => Promise<Uint8Array>;

/** The engine tokenizes; detokenization is local, from the token table fetched once. */
export class EngineTokenizer implements Tokenizer {
  readonly table: TokenTable;
  readonly #ask: AskWorker;

  private constructor(table: TokenTable, ask: AskWorker) {
    this.table = table;
    this.#ask = ask;
  }

  static async load(ask: AskWorker, signal: AbortSignal): Promise<EngineTokenizer> {
    const table = decodeTokenTable(await ask(workerEndpoints.tokenTable, new Uint8Array(0), signal));
    if (table.flags.length === 0 || table.offsets.length !== table.flags.length + 1) {
      throw new StatorError("protocol_error", "The worker sent a token table without tokens.");
    }
    return new EngineTokenizer(table, ask);
  }

  async encode(text: string, options: EncodeOptions, signal: AbortSignal): Promise<Uint32Array> {
    return decodeTokens(await this.#ask(workerEndpoints.tokenize, pack({ text, ...options }), signal));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

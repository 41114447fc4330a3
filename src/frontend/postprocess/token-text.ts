import { type TokenTable, tokenBytes } from "../../protocol/token-table.ts";

const lossyDecoder = new TextDecoder("utf-8", { ignoreBOM: true });
const strictDecoder = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** One token as logprobs show it: its text (broken UTF-8 as U+FFFD) and its exact bytes. */
export function tokenText(table: TokenTable, id: number): { token: string; bytes: number[] } {
  const bytes = tokenBytes(table, id);
  return { token: lossyDecoder.decode(bytes), bytes: Array.from(bytes) };
}

/**
 * The texts of a vocabulary, decoded once per token: most tokens are whole characters, and then a step of detokenization
 * is one array read. Shared by all streams of a model.
 */
export class TokenTexts {
  readonly #table: TokenTable;
  readonly #texts: (string | null | undefined)[];

  private constructor(table: TokenTable) {
    this.#table = table;
    this.#texts = new Array(table.flags.length);
  }

  static of(table: TokenTable): TokenTexts {
    let texts = byTable.get(table);
    if (texts === undefined) {
      texts = new TokenTexts(table);
      byTable.set(table, texts);
    }
    return texts;
  }

  /** The token's text, or null when its bytes are not whole characters. Unknown ids have no text. */
  whole(id: number): string | null {
    const known = this.#texts[id];
    if (known !== undefined) return known;
    if (id >= this.#table.flags.length) return "";
    let text: string | null;
    try {
      text = strictDecoder.decode(tokenBytes(this.#table, id));
    } catch {
      text = null;
    }
    this.#texts[id] = text;
    return text;
  }
}

const byTable = new WeakMap<TokenTable, TokenTexts>();

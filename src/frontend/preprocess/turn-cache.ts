import { TokenFlag, type TokenTable, tokenBytes } from "../../protocol/token-table.ts";
import type { EncodeOptions, Tokenizer } from "./tokenizer.ts";

/** Texts below this are tokenized whole: a look-up would cost as much. */
const MIN_TEXT_LENGTH = 512;
/** How many turn boundaries, from the end, are tried. One request adds two turns, so the last ones are enough. */
const MAX_TRIES = 8;

/**
 * Flat cost for growing chats: remembers the tokens of a prompt up to its last turn boundary; the next request of the
 * conversation tokenizes only what is new.
 *
 * ```
 * first   |system ... user ...|<end> assistant:              cached: tokens up to the boundary |
 * next    |system ... user ...|<end> assistant: ... user ...|<end> assistant:
 *          from the cache      tokenized now
 * ```
 *
 * A boundary is the place before a special token whose left neighbour is not white space: tokenizers never merge across
 * it, and a special token that strips white space to its left has none to strip. So the result equals tokenizing whole.
 */
export class TurnCache implements Tokenizer {
  readonly table: TokenTable;
  readonly #inner: Tokenizer;
  readonly #maxBytes: number;
  readonly #specials: ReadonlyMap<string, number>;
  readonly #pattern: RegExp | undefined;
  /** In order of use, oldest first. */
  readonly #entries = new Map<string, Uint32Array>();
  #bytes = 0;
  hits = 0;
  misses = 0;

  /** `maxBytes`: memory for texts and tokens together. Default 64 MiB. */
  constructor(inner: Tokenizer, maxBytes: number = 64 * 1024 * 1024) {
    this.#inner = inner;
    this.table = inner.table;
    this.#maxBytes = maxBytes;
    this.#specials = specialTokens(inner.table);
    const texts = [...this.#specials.keys()].sort((a, b) => b.length - a.length).map(escapeForRegExp);
    this.#pattern = texts.length > 0 ? new RegExp(texts.join("|"), "g") : undefined;
  }

  async encode(text: string, options: EncodeOptions, signal: AbortSignal): Promise<Uint32Array> {
    const usable = options.parseSpecial && !options.addSpecial && text.length >= MIN_TEXT_LENGTH;
    if (!usable || this.#pattern === undefined) return this.#inner.encode(text, options, signal);
    const boundaries = this.#boundaries(text, this.#pattern);
    const known = this.#longestKnown(text, boundaries);
    const rest = await this.#inner.encode(known === undefined ? text : text.slice(known.length), options, signal);
    const tokens = known === undefined ? rest : concat(known.tokens, rest);
    this.#remember(text, boundaries.at(-1), tokens);
    return tokens;
  }

  close(): Promise<void> {
    this.#entries.clear();
    this.#bytes = 0;
    return this.#inner.close();
  }

  #boundaries(text: string, pattern: RegExp): Boundary[] {
    const boundaries: Boundary[] = [];
    for (const match of text.matchAll(pattern)) {
      const at = match.index;
      if (at > 0 && !/\s/.test(text[at - 1]!)) boundaries.push({ at, special: match[0] });
    }
    return boundaries;
  }

  #longestKnown(text: string, boundaries: readonly Boundary[]): { length: number; tokens: Uint32Array } | undefined {
    const oldest = Math.max(0, boundaries.length - MAX_TRIES);
    for (let i = boundaries.length - 1; i >= oldest; i--) {
      const length = boundaries[i]!.at;
      const key = text.slice(0, length);
      const tokens = this.#entries.get(key);
      if (tokens === undefined) continue;
      this.#entries.delete(key);
      this.#entries.set(key, tokens);
      this.hits += 1;
      return { length, tokens };
    }
    this.misses += 1;
    return undefined;
  }

  #remember(text: string, boundary: Boundary | undefined, tokens: Uint32Array): void {
    if (boundary === undefined || text.indexOf(boundary.special, boundary.at + 1) >= 0) return;
    const split = tokens.lastIndexOf(this.#specials.get(boundary.special)!);
    if (split <= 0) return;
    const key = text.slice(0, boundary.at);
    const bytes = entryBytes(key, split);
    if (this.#entries.has(key) || bytes > this.#maxBytes / 4) return;
    this.#entries.set(key, tokens.slice(0, split));
    this.#bytes += bytes;
    for (const [oldKey, oldTokens] of this.#entries) {
      if (this.#bytes <= this.#maxBytes) break;
      this.#entries.delete(oldKey);
      this.#bytes -= entryBytes(oldKey, oldTokens.length);
    }
  }
}

interface Boundary {
  readonly at: number;
  readonly special: string;
}

/** Two bytes per character at most, four per token, and the map's own cost. */
function entryBytes(key: string, tokens: number): number {
  return key.length * 2 + tokens * 4 + 100;
}

/** Special tokens that look like one: short or blank texts would cut ordinary words. */
function specialTokens(table: TokenTable): Map<string, number> {
  const decoder = new TextDecoder();
  const specials = new Map<string, number>();
  for (let id = 0; id < table.flags.length; id++) {
    if ((table.flags[id]! & TokenFlag.special) === 0) continue;
    const text = decoder.decode(tokenBytes(table, id));
    if (text.length >= 3 && text.trim() === text && !text.includes("\ufffd")) specials.set(text, id);
  }
  return specials;
}

function concat(a: Uint32Array, b: Uint32Array): Uint32Array {
  const joined = new Uint32Array(a.length + b.length);
  joined.set(a);
  joined.set(b, a.length);
  return joined;
}

function escapeForRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

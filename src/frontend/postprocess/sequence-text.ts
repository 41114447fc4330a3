import { TokenFlag, type TokenTable, tokenBytes } from "../../protocol/token-table.ts";
import { StopMatcher } from "./stop-matcher.ts";
import { TokenTexts } from "./token-text.ts";
import { Utf8Joiner } from "./utf8-joiner.ts";

export interface SequenceTextOptions {
  readonly stop: readonly string[];
  /** The matched stop string is part of the text. */
  readonly includeStop: boolean;
  /** Control tokens have no text. */
  readonly skipSpecial: boolean;
  /** Stop strings do not match inside the text of the first `minTokens` tokens. */
  readonly minTokens?: number;
}

/**
 * Turns the tokens of one sequence into text that may be sent: whole characters only, and nothing that could still turn
 * out to be the beginning of a stop string.
 */
export class SequenceText {
  readonly #table: TokenTable;
  readonly #texts: TokenTexts;
  readonly #options: SequenceTextOptions;
  readonly #joiner = new Utf8Joiner();
  readonly #matcher: StopMatcher | undefined;
  #held = "";
  #stopped: string | undefined;
  #unmatchedTokens: number;

  constructor(table: TokenTable, options: SequenceTextOptions) {
    this.#table = table;
    this.#texts = TokenTexts.of(table);
    this.#options = options;
    this.#matcher = options.stop.length > 0 ? new StopMatcher(options.stop) : undefined;
    this.#unmatchedTokens = options.minTokens ?? 0;
  }

  /** The stop string that ended the text. */
  get stopped(): string | undefined {
    return this.#stopped;
  }

  /** Something is held back: characters of these tokens will come with a later call. */
  get holding(): boolean {
    return this.#held !== "" || !this.#joiner.idle;
  }

  /** Text that may be sent now that `tokens[from..to)` have come. Nothing more comes after a stop string. */
  push(tokens: Uint32Array, from: number = 0, to: number = tokens.length): string {
    if (this.#matcher === undefined) return this.#decode(tokens, from, to);
    if (this.#stopped !== undefined) return "";
    const unmatched = Math.min(this.#unmatchedTokens, to - from);
    this.#unmatchedTokens -= unmatched;
    const free = unmatched === 0 ? "" : this.#decode(tokens, from, from + unmatched);
    return free + this.#match(this.#matcher, this.#decode(tokens, from + unmatched, to));
  }

  /** The rest, at the end of the sequence. */
  finish(): string {
    if (this.#stopped !== undefined) return "";
    const tail = this.#joiner.finish();
    const text = this.#matcher === undefined ? tail : this.#match(this.#matcher, tail);
    if (this.#stopped !== undefined) return text;
    const rest = text + this.#held;
    this.#held = "";
    return rest;
  }

  #decode(tokens: Uint32Array, from: number, to: number): string {
    let text = "";
    for (let i = from; i < to; i++) {
      const id = tokens[i]!;
      if (this.#options.skipSpecial && (this.#table.flags[id]! & TokenFlag.special) !== 0) continue;
      const whole = this.#joiner.idle ? this.#texts.whole(id) : null;
      text += whole ?? this.#joiner.push(tokenBytes(this.#table, id));
    }
    return text;
  }

  #match(matcher: StopMatcher, text: string): string {
    if (text === "") return "";
    const held = this.#held;
    const match = matcher.feed(text);
    const all = held + text;
    if (match !== undefined) {
      this.#stopped = match.stop;
      this.#held = "";
      const end = held.length + match.end;
      return all.slice(0, this.#options.includeStop ? end : end - match.stop.length);
    }
    const safe = all.length - matcher.partial;
    this.#held = all.slice(safe);
    return all.slice(0, safe);
  }
}

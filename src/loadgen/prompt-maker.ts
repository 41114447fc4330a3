import { type Random, seededRandom } from "../protocol/random.ts";
import type { TraceRequest } from "../traces/trace-request.ts";

/** Short, common words: about one token each in most vocabularies. */
const words =
  "the of and to in is that for it was on are as with they at be this from have or by one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been its who now people my made over did down only way find use may water long little very after words called just where most know".split(
    " ",
  );

/** Makes the text of a request; each one once, in the order in which they are sent. */
export interface Prompts {
  textOf(request: TraceRequest): string;
}

/**
 * Texts for the requests of a trace. A block id always gives the same words, so prompts share text exactly where the
 * trace says that they share tokens; requests whose trace says nothing share nothing.
 */
export class PromptMaker implements Prompts {
  readonly #tokensPerWord: number;
  readonly #seed: number;
  #unique = 0;

  /** `tokensPerWord`: how the server counts, see {@link sampleOf}. */
  constructor(tokensPerWord: number, seed: number) {
    this.#tokensPerWord = tokensPerWord;
    this.#seed = seed;
  }

  textOf(request: TraceRequest): string {
    const { inputTokens, blockIds, blockTokens } = request;
    const wanted = Math.max(1, Math.round(inputTokens / this.#tokensPerWord));
    const text: string[] = [];
    const blockWords = Math.max(1, Math.round(blockTokens / this.#tokensPerWord));
    for (const id of blockIds) {
      if (text.length >= wanted) break;
      text.push(...this.#words(id, Math.min(blockWords, wanted - text.length)));
    }
    if (text.length < wanted) text.push(...this.#words(-1 - this.#unique++, wanted - text.length));
    return text.join(" ");
  }

  #words(id: number, count: number): string[] {
    const random = blockRandom(this.#seed, id);
    return Array.from({ length: count }, () => words[random.below(words.length)]!);
  }
}

/** A text of so many words, to learn how a server counts tokens. */
export function sampleOf(count: number): string {
  return Array.from({ length: count }, (_, i) => words[(i * 7) % words.length]!).join(" ");
}

/** What the content of a block is made of: another for each id, whatever the seed. */
export function blockRandom(seed: number, id: number): Random {
  // A plain product of a large seed has no room for the id.
  return seededRandom(Math.imul(seed, 1_000_003) + id);
}

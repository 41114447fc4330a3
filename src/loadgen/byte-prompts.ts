import type { TraceRequest } from "../traces/trace-request.ts";
import { blockRandom, type Prompts } from "./prompt-maker.ts";

/** One byte each, none of them special in JSON: 64, so that six random bits make one. */
const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";

/**
 * Prompts for engines whose tokens are bytes (`mocker`, `echo`): exactly as long as the trace says, and equal exactly as
 * far as its block ids are, so that a replay of the trace and a live run have the same workload. Different blocks differ
 * from their first bytes on.
 */
export class BytePrompts implements Prompts {
  readonly #seed: number;
  #unique = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  textOf({ inputTokens, blockIds, blockTokens }: TraceRequest): string {
    const parts: string[] = [];
    let length = 0;
    for (const id of blockIds) {
      if (length >= inputTokens) break;
      const part = this.#bytes(id, Math.min(blockTokens, inputTokens - length));
      parts.push(part);
      length += part.length;
    }
    if (length < inputTokens) parts.push(this.#bytes(-1 - this.#unique++, inputTokens - length));
    return parts.join("");
  }

  /** A shorter text of an id is the beginning of a longer one. */
  #bytes(id: number, count: number): string {
    const random = blockRandom(this.#seed, id);
    let text = "";
    for (let i = 0; i < count; i++) text += alphabet[random.below(64)];
    return text;
  }
}

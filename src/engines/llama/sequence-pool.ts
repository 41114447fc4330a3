import { BlockAccount, type BlockListener } from "./block-account.ts";

export interface SequencePoolOptions {
  readonly sequences: number;
  readonly blockSize: number;
  /**
   * Reuse only what is bit for bit what a fresh run would compute: whole chunks that prefill evaluated, in multiples of
   * this many tokens. Undefined = any evaluated token may be reused.
   */
  readonly exactChunk?: number;
  readonly listener?: BlockListener;
}

/** The right to use one sequence. Given back exactly once, by {@link SequencePool.release}. */
export interface SequenceLease {
  readonly index: number;
  /** Tokens at the start of the prompt that the sequence already holds; the rest of it must be erased. */
  readonly reusable: number;
}

interface SequenceState {
  /** What the KV cache holds. */
  tokens: number[];
  /** Tokens at the start that prefill evaluated in whole chunks. */
  prefilled: number;
  busy: boolean;
  lastUsed: number;
}

/**
 * Which sequence of the context runs which request, and what each holds. Pure book-keeping: the caller evaluates and
 * erases, and reports it here.
 */
export class SequencePool {
  private readonly states: SequenceState[];
  private readonly account: BlockAccount;
  private readonly exactChunk: number | undefined;
  private useCount = 0;
  private busyCount = 0;

  constructor(options: SequencePoolOptions) {
    this.states = Array.from({ length: options.sequences }, () => ({
      tokens: [],
      prefilled: 0,
      busy: false,
      lastUsed: 0,
    }));
    this.account = new BlockAccount(options);
    this.exactChunk = options.exactChunk;
  }

  get busy(): number {
    return this.busyCount;
  }

  get usedBlocks(): number {
    return this.account.usedBlocks;
  }

  /**
   * The free sequence with the longest reusable prefix, or, where the best match would throw away more than it saves,
   * the one unused for longest (empty ones first). Undefined when all are busy. At least the prompt's last token is
   * never reusable: its evaluation gives the first new token.
   */
  acquire(prompt: Uint32Array): SequenceLease | undefined {
    let matching = -1;
    let reusable = 0;
    let oldest = -1;
    for (let index = 0; index < this.states.length; index++) {
      const state = this.states[index]!;
      if (state.busy) continue;
      if (oldest < 0 || this.age(state) < this.age(this.states[oldest]!)) oldest = index;
      const found = this.reusablePrefix(state, prompt);
      if (found > reusable) {
        matching = index;
        reusable = found;
      }
    }
    if (oldest < 0) return undefined;
    const worthIt = matching >= 0 && reusable * 2 >= Math.min(prompt.length, this.states[matching]!.tokens.length);
    const index = worthIt || matching === oldest ? matching : oldest;
    this.states[index]!.lastUsed = ++this.useCount;
    this.take(index);
    return { index, reusable: this.reusablePrefix(this.states[index]!, prompt) };
  }

  /** The free sequence unused for longest, with all that it holds. For work that leaves its contents alone. */
  acquireIdle(): { readonly index: number; readonly held: number } | undefined {
    let oldest = -1;
    for (let index = 0; index < this.states.length; index++) {
      const state = this.states[index]!;
      if (!state.busy && (oldest < 0 || this.age(state) < this.age(this.states[oldest]!))) oldest = index;
    }
    if (oldest < 0) return undefined;
    this.take(oldest);
    return { index: oldest, held: this.states[oldest]!.tokens.length };
  }

  release(lease: { readonly index: number }): void {
    const state = this.states[lease.index]!;
    if (!state.busy) throw new Error(`Sequence ${lease.index} was released twice.`);
    state.busy = false;
    this.busyCount--;
  }

  /** Tokens that the sequence holds. */
  held(index: number): number {
    return this.states[index]!.tokens.length;
  }

  /** The sequence has evaluated these tokens behind the ones it holds. */
  extend(index: number, tokens: readonly number[], by: "prefill" | "decode"): void {
    const state = this.states[index]!;
    const wasPrefilled = state.prefilled === state.tokens.length;
    for (const token of tokens) {
      state.tokens.push(token);
      this.account.append(index, token);
    }
    if (by === "prefill" && wasPrefilled) {
      const chunk = this.exactChunk ?? 1;
      // A started chunk has another shape than a full one, so it ends what can be reused exactly.
      state.prefilled = Math.floor(state.tokens.length / chunk) * chunk;
    }
  }

  /** The sequence keeps its first `length` tokens only. */
  truncate(index: number, length: number): void {
    const state = this.states[index]!;
    state.tokens.length = Math.min(state.tokens.length, length);
    state.prefilled = Math.min(state.prefilled, length);
    this.account.truncate(index, length);
  }

  private take(index: number): void {
    this.states[index]!.busy = true;
    this.busyCount++;
  }

  private age(state: SequenceState): number {
    return state.tokens.length === 0 ? -1 : state.lastUsed;
  }

  private reusablePrefix(state: SequenceState, prompt: Uint32Array): number {
    const held = this.exactChunk === undefined ? state.tokens.length : state.prefilled;
    const limit = Math.min(held, prompt.length - 1);
    let common = 0;
    while (common < limit && state.tokens[common] === prompt[common]) common++;
    return this.exactChunk === undefined ? common : Math.floor(common / this.exactChunk) * this.exactChunk;
  }
}

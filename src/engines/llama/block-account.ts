/** A full block of tokens behind a certain prefix. Equal prefix and equal tokens = the same block. */
export interface AccountedBlock {
  /** Unique while the block is held; never used twice. */
  readonly id: number;
  /** The block before it; undefined for the first block of a sequence. */
  readonly parent: AccountedBlock | undefined;
  readonly tokens: Uint32Array;
}

export interface BlockListener {
  /** The first sequence holds the block now. A parent is always stored before its children. */
  stored(block: AccountedBlock): void;
  /** No sequence holds the block any more. Children are always removed before their parent. */
  removed(block: AccountedBlock): void;
}

interface HeldBlock extends AccountedBlock {
  readonly key: string;
  holders: number;
}

/**
 * What the sequences of a context hold, as content-addressed full blocks. llama.cpp has no blocks and tells nobody what
 * it keeps; this account is the truth for `loads().usedBlocks` and the source of KV events.
 *
 * ```
 * sequence 0:  [system prompt][question A]  tail of a started block, not counted
 *                    |
 * sequence 1:  [same block   ][question B]
 *                held twice,    held once
 *                stored once
 * ```
 *
 * Invariants: `usedBlocks` = number of distinct held blocks; every stored event has at most one removed event after it.
 */
export class BlockAccount {
  private readonly blockSize: number;
  private readonly listener: BlockListener | undefined;
  private readonly blocks = new Map<string, HeldBlock>();
  private readonly sequences: { readonly held: HeldBlock[]; readonly tail: number[] }[];
  private nextId = 1;

  constructor(options: { blockSize: number; sequences: number; listener?: BlockListener }) {
    this.blockSize = options.blockSize;
    this.listener = options.listener;
    this.sequences = Array.from({ length: options.sequences }, () => ({ held: [], tail: [] }));
  }

  /** Distinct full blocks that are held. */
  get usedBlocks(): number {
    return this.blocks.size;
  }

  /** The sequence has evaluated one more token. */
  append(sequence: number, token: number): void {
    const state = this.sequences[sequence]!;
    state.tail.push(token);
    if (state.tail.length === this.blockSize) this.closeBlock(state);
  }

  /** The sequence keeps its first `length` tokens only. A shorter sequence stays as it is. */
  truncate(sequence: number, length: number): void {
    const state = this.sequences[sequence]!;
    const full = Math.floor(length / this.blockSize);
    if (full >= state.held.length) {
      state.tail.length = Math.min(state.tail.length, length - state.held.length * this.blockSize);
      return;
    }
    const cut = state.held[full]!;
    for (let i = state.held.length - 1; i >= full; i--) this.release(state.held[i]!);
    state.held.length = full;
    state.tail.length = 0;
    for (const token of cut.tokens.subarray(0, length - full * this.blockSize)) state.tail.push(token);
  }

  private closeBlock(state: { readonly held: HeldBlock[]; readonly tail: number[] }): void {
    const parent = state.held.at(-1);
    const key = `${parent?.id ?? 0}:${state.tail.join(",")}`;
    let block = this.blocks.get(key);
    if (block === undefined) {
      block = { id: this.nextId++, parent, tokens: Uint32Array.from(state.tail), key, holders: 0 };
      this.blocks.set(key, block);
    }
    block.holders++;
    state.held.push(block);
    state.tail.length = 0;
    if (block.holders === 1) this.listener?.stored(block);
  }

  private release(block: HeldBlock): void {
    block.holders--;
    if (block.holders > 0) return;
    this.blocks.delete(block.key);
    this.listener?.removed(block);
  }
}

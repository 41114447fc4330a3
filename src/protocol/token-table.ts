/**
 * The bytes of every token of a vocabulary, so that any process turns tokens into text by concatenation.
 *
 * ```
 * bytes   | token 0 | token 1 | ...            UTF-8 fragments, not always whole characters
 * offsets | 0 | end of 0 | end of 1 | ...      count + 1 entries
 * flags   | per token, TokenFlag bits
 * ```
 */
export interface TokenTable {
  readonly bytes: Uint8Array;
  readonly offsets: Uint32Array;
  readonly flags: Uint8Array;
}

export const TokenFlag = {
  /** Control token: hidden from text unless the client asks for special tokens. */
  special: 1,
  /** Ends a turn or the text. */
  endOfGeneration: 2,
} as const;

export function buildTokenTable(tokens: readonly { bytes: Uint8Array; flags: number }[]): TokenTable {
  const offsets = new Uint32Array(tokens.length + 1);
  let total = 0;
  for (let id = 0; id < tokens.length; id++) {
    total += tokens[id]!.bytes.length;
    offsets[id + 1] = total;
  }
  const bytes = new Uint8Array(total);
  const flags = new Uint8Array(tokens.length);
  for (let id = 0; id < tokens.length; id++) {
    bytes.set(tokens[id]!.bytes, offsets[id]!);
    flags[id] = tokens[id]!.flags;
  }
  return { bytes, offsets, flags };
}

/** The bytes of one token, as a view. Empty for an id outside the table. */
export function tokenBytes(table: TokenTable, id: number): Uint8Array {
  const start = table.offsets[id];
  const end = table.offsets[id + 1];
  return start === undefined || end === undefined ? emptyBytes : table.bytes.subarray(start, end);
}

/** Bytes of the longest token: a text of n bytes has at least n / longest tokens. At least 1. */
export function longestToken(table: TokenTable): number {
  let longest = 1;
  for (let id = 0; id + 1 < table.offsets.length; id++) {
    longest = Math.max(longest, table.offsets[id + 1]! - table.offsets[id]!);
  }
  return longest;
}

const emptyBytes = new Uint8Array(0);

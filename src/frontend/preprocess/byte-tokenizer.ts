import { buildTokenTable, type TokenTable } from "../../protocol/token-table.ts";
import type { Tokenizer } from "./tokenizer.ts";

const encoder = new TextEncoder();
const byteTable: TokenTable = buildTokenTable(
  Array.from({ length: 256 }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })),
);

/** A token is a byte. */
export const byteTokenizer: Tokenizer = {
  table: byteTable,
  encode: (text) => Promise.resolve(new Uint32Array(encoder.encode(text))),
  close: () => Promise.resolve(),
};

import { byteLevelBytes, sentencePieceBytes } from "../../model-files/piece-bytes.ts";
import { StatorError } from "../../protocol/errors.ts";
import { buildTokenTable, TokenFlag, type TokenTable } from "../../protocol/token-table.ts";

/** What is read of a tokenizer.json. */
interface TokenizerJson {
  readonly model?: { readonly vocab?: Record<string, number> | readonly (readonly [string, number])[] };
  readonly added_tokens?: readonly { readonly id: number; readonly content: string; readonly special?: boolean }[];
  readonly decoder?: DecoderJson | null;
}

interface DecoderJson {
  readonly type: string;
  readonly decoders?: readonly DecoderJson[];
}

const encoder = new TextEncoder();

/**
 * The token table of a Hugging Face tokenizer.json. Only decoders that work by concatenation have one: ByteLevel (GPT-2
 * and its heirs) and Metaspace or ByteFallback (SentencePiece). WordPiece does not.
 */
export function huggingFaceTable(json: unknown): TokenTable {
  const { model, added_tokens: added = [], decoder } = json as TokenizerJson;
  const pieceBytes = bytesByDecoder(decoder);
  const vocab = model?.vocab;
  if (vocab === undefined || vocab === null) throw unusable("it has no model.vocab");
  const pairs: (readonly [string, number])[] = Array.isArray(vocab)
    ? (vocab as readonly (readonly [string, number])[]).map(([piece], id) => [piece, id] as const)
    : Object.entries(vocab as Record<string, number>);
  const tokens: { bytes: Uint8Array; flags: number }[] = [];
  const put = (id: number, bytes: Uint8Array, flags: number): void => {
    if (!Number.isInteger(id) || id < 0 || id > 4_000_000) throw unusable(`it has the token id ${id}`);
    tokens[id] = { bytes, flags };
  };
  for (const [piece, id] of pairs) put(id, pieceBytes(piece), 0);
  for (const { id, content, special } of added) put(id, encoder.encode(content), special ? TokenFlag.special : 0);
  for (let id = 0; id < tokens.length; id++) tokens[id] ??= { bytes: new Uint8Array(0), flags: TokenFlag.special };
  return buildTokenTable(tokens);
}

function bytesByDecoder(decoder: DecoderJson | null | undefined): (piece: string) => Uint8Array {
  const types = decoder == null ? [] : [decoder.type, ...(decoder.decoders ?? []).map(({ type }) => type)];
  if (types.includes("ByteLevel")) return byteLevelBytes;
  if (types.includes("ByteFallback") || types.includes("Metaspace")) return sentencePieceBytes;
  throw unusable(`its decoder is ${types[0] ?? "missing"}, not ByteLevel, ByteFallback or Metaspace`);
}

function unusable(reason: string): StatorError {
  return new StatorError("not_ready", `The model's tokenizer.json cannot be used: ${reason}.`);
}

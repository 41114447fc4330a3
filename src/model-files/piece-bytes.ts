/*
 * How vocabularies write bytes as text. Two conventions cover the models of the field:
 * byte-level BPE (GPT-2 and its heirs): each byte is one printable character;
 * SentencePiece: plain text with U+2581 for a space, and `<0xXX>` for a single byte.
 */

const encoder = new TextEncoder();
/** Byte-level BPE's alphabet: the character that stands for each byte. */
export const byteOfCharacter: ReadonlyMap<string, number> = byteAlphabet();

function byteAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>();
  // Bytes that are printable in Latin-1 stand for themselves; the others follow from U+0100 on, in order.
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet.set(String.fromCharCode(printable ? byte : next++), byte);
  }
  return alphabet;
}

/** The bytes of a piece of a byte-level BPE vocabulary. A piece with a character outside the alphabet is plain text. */
export function byteLevelBytes(piece: string): Uint8Array {
  const bytes: number[] = [];
  for (const character of piece) {
    const byte = byteOfCharacter.get(character);
    if (byte === undefined) return encoder.encode(piece);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}

/** The bytes of a piece of a SentencePiece vocabulary. */
export function sentencePieceBytes(piece: string): Uint8Array {
  const single = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece);
  return single ? Uint8Array.of(Number.parseInt(single[1]!, 16)) : encoder.encode(piece.replaceAll("\u2581", " "));
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const none = new Uint8Array(0);

/**
 * Joins byte pieces into text. What could still become a character is held back; what cannot becomes U+FFFD, as a
 * decoder of the whole byte string would do it.
 */
export class Utf8Joiner {
  #pending: Uint8Array = none;

  /** Nothing is held back. */
  get idle(): boolean {
    return this.#pending.length === 0;
  }

  push(bytes: Uint8Array): string {
    const all = this.#pending.length === 0 ? bytes : concat(this.#pending, bytes);
    const complete = all.length - incompleteTail(all);
    this.#pending = complete === all.length ? none : all.slice(complete);
    return complete === 0 ? "" : decoder.decode(all.subarray(0, complete));
  }

  /** The end: an unfinished character becomes U+FFFD. */
  finish(): string {
    const text = this.#pending.length === 0 ? "" : decoder.decode(this.#pending);
    this.#pending = none;
    return text;
  }
}

/** How many bytes at the end are the beginning of a character that more bytes could complete (0 to 3). */
export function incompleteTail(bytes: Uint8Array): number {
  const end = bytes.length;
  for (let length = 1; length <= 3 && length <= end; length++) {
    const lead = bytes[end - length]!;
    if (lead >= 0x80 && lead < 0xc0) continue; // a continuation byte: its lead is further left
    const needed = lead >= 0xf5 ? 0 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
    if (needed <= length) return 0;
    return length === 1 || secondByteFits(lead, bytes[end - length + 1]!) ? length : 0;
  }
  return 0;
}

/** The second byte rules out overlong forms, surrogates and code points above U+10FFFF (Unicode, table 3-7). */
function secondByteFits(lead: number, second: number): boolean {
  const low = lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
  const high = lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const joined = new Uint8Array(a.length + b.length);
  joined.set(a);
  joined.set(b, a.length);
  return joined;
}

import { MAX_CHUNKED_MESSAGES } from "./chunks.ts";
import { malformed, PART_HEAD_BYTES } from "./frames.ts";

/** Memory that is reserved for a message, as a multiple of what has come of it. */
const RESERVE_FACTOR = 8;

interface Assembly {
  readonly total: number;
  bytes: Uint8Array;
  filled: number;
}

/**
 * Puts messages together again that came in pieces. A peer can neither make us reserve much more than it has sent, nor
 * have more than {@link MAX_CHUNKED_MESSAGES} under way.
 */
export class Assembler {
  readonly #maxBytes: number;
  readonly #assemblies = new Map<number, Assembly>();

  /** `maxBytes` of one whole payload. */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Messages under way. */
  get size(): number {
    return this.#assemblies.size;
  }

  /** A piece of a message. Throws `protocol_error`. */
  add(stream: number, payload: Uint8Array): void {
    if (payload.length <= PART_HEAD_BYTES) throw malformed("a piece of a message is empty");
    const total = new DataView(payload.buffer, payload.byteOffset).getUint32(0, true);
    let assembly = this.#assemblies.get(stream);
    if (!assembly) {
      if (total > this.#maxBytes) {
        throw malformed(`a message has ${total} bytes, at most ${this.#maxBytes} are allowed`);
      }
      if (this.#assemblies.size >= MAX_CHUNKED_MESSAGES) {
        throw malformed(`it sends more than ${MAX_CHUNKED_MESSAGES} messages in pieces at once`);
      }
      assembly = { total, bytes: noBytes, filled: 0 };
      this.#assemblies.set(stream, assembly);
    }
    if (assembly.total !== total) throw malformed("the pieces of a message tell different sizes");
    append(assembly, payload.subarray(PART_HEAD_BYTES));
  }

  /** The whole payload that ends with `last`: `last` itself when nothing came before it. Throws `protocol_error`. */
  complete(stream: number, last: Uint8Array): Uint8Array {
    if (this.#assemblies.size === 0) return last;
    const assembly = this.#assemblies.get(stream);
    if (!assembly) return last;
    this.#assemblies.delete(stream);
    append(assembly, last);
    if (assembly.filled !== assembly.total) throw malformed("a message has not the size that its pieces told");
    return assembly.bytes;
  }

  /** The rest of the stream's message will not come. */
  forget(stream: number): void {
    this.#assemblies.delete(stream);
  }

  clear(): void {
    this.#assemblies.clear();
  }
}

function append(assembly: Assembly, piece: Uint8Array): void {
  const needed = assembly.filled + piece.length;
  if (needed > assembly.total) throw malformed("the pieces of a message are more than it told");
  if (needed > assembly.bytes.length) {
    const grown = Buffer.allocUnsafeSlow(Math.min(assembly.total, needed * RESERVE_FACTOR));
    grown.set(assembly.bytes.subarray(0, assembly.filled));
    assembly.bytes = grown;
  }
  assembly.bytes.set(piece, assembly.filled);
  assembly.filled = needed;
}

const noBytes = new Uint8Array(0);

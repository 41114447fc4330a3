import { FRAME_HEADER_BYTES, malformed } from "./frames.ts";

/**
 * One whole frame. `payload` is a view of what was pushed (or of the parser's own buffer) and only valid during the call,
 * unless the pushed chunks are never written to again.
 */
export type FrameHandler = (type: number, stream: number, payload: Uint8Array) => void;

/*
 * Cuts a byte stream into frames, whatever the chunks look like.
 *
 *   header --9 bytes--> payload --n bytes--> (handler) --> header ...
 *
 * A frame that lies in one chunk costs a subarray. Only the frame that crosses a chunk border is copied, into a buffer
 * that grows with what has really arrived, so a peer cannot make us reserve what it merely announces.
 */
export class FrameParser {
  readonly #maxPayload: readonly (number | undefined)[];
  readonly #onFrame: FrameHandler;
  readonly #header = new Uint8Array(FRAME_HEADER_BYTES);
  #headerFill = 0;
  #type = 0;
  #stream = 0;
  /** Payload bytes of the frame under way; -1 = its header is not complete. */
  #size = -1;
  #partial: Uint8Array = empty;
  #partialFill = 0;
  #stopped = false;

  constructor(maxPayload: readonly (number | undefined)[], onFrame: FrameHandler) {
    this.#maxPayload = maxPayload;
    this.#onFrame = onFrame;
  }

  /** True between two frames. */
  get isIdle(): boolean {
    return this.#headerFill === 0 && this.#size < 0;
  }

  /** No frame is handed out any more. */
  stop(): void {
    this.#stopped = true;
    this.#partial = empty;
  }

  /** Hands out every frame that `chunk` completes. Throws `protocol_error`; the parser must not be used afterwards. */
  push(chunk: Uint8Array): void {
    let at = 0;
    const length = chunk.length;
    while (!this.#stopped) {
      if (this.#size < 0) {
        if (this.#headerFill === 0 && length - at >= FRAME_HEADER_BYTES) {
          this.#readHeader(chunk, at);
          at += FRAME_HEADER_BYTES;
        } else {
          const taken = Math.min(FRAME_HEADER_BYTES - this.#headerFill, length - at);
          this.#header.set(chunk.subarray(at, at + taken), this.#headerFill);
          this.#headerFill += taken;
          at += taken;
          if (this.#headerFill < FRAME_HEADER_BYTES) return;
          this.#headerFill = 0;
          this.#readHeader(this.#header, 0);
        }
      }
      const size = this.#size;
      if (this.#partialFill === 0 && length - at >= size) {
        this.#size = -1;
        this.#onFrame(this.#type, this.#stream, chunk.subarray(at, at + size));
        at += size;
        continue;
      }
      const taken = Math.min(size - this.#partialFill, length - at);
      this.#collect(chunk.subarray(at, at + taken), size);
      at += taken;
      if (this.#partialFill < size) return;
      const payload = this.#partial.subarray(0, size);
      this.#partial = empty;
      this.#partialFill = 0;
      this.#size = -1;
      this.#onFrame(this.#type, this.#stream, payload);
    }
  }

  #readHeader(bytes: Uint8Array, at: number): void {
    const size = (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0;
    const type = bytes[at + 4]!;
    const max = this.#maxPayload[type];
    if (max === undefined) throw malformed(`there is no frame type ${type}`);
    if (size > max) throw malformed(`a frame of type ${type} has ${size} bytes, at most ${max} are allowed`);
    this.#size = size;
    this.#type = type;
    this.#stream = (bytes[at + 5]! | (bytes[at + 6]! << 8) | (bytes[at + 7]! << 16) | (bytes[at + 8]! << 24)) >>> 0;
  }

  #collect(part: Uint8Array, size: number): void {
    const needed = this.#partialFill + part.length;
    if (this.#partial.length < needed) {
      const grown = Buffer.allocUnsafeSlow(Math.min(size, Math.max(needed, this.#partial.length * 2)));
      grown.set(this.#partial.subarray(0, this.#partialFill));
      this.#partial = grown;
    }
    this.#partial.set(part, this.#partialFill);
    this.#partialFill = needed;
  }
}

const empty = new Uint8Array(0);

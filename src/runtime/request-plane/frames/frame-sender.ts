import { CHUNK_BYTES, MAX_CHUNKED_MESSAGES } from "./chunks.ts";
import type { FrameWriter } from "./frame-writer.ts";
import { encodeU32, FrameType } from "./frames.ts";

/** Pieces are written while less than this waits for the link: what others send meanwhile waits behind no more. */
const PIECES_AHEAD_BYTES = 4 * CHUNK_BYTES;

interface Message {
  readonly type: number;
  /** Goes with the first piece. */
  readonly head: Uint8Array;
  readonly payload: Uint8Array;
}

/** A stream with a message that is too large for one frame, and what the stream sent after it. */
interface Backlog {
  readonly stream: number;
  readonly messages: Message[];
  /** Payload bytes of the first message that have been written. */
  sent: number;
}

/*
 * Sends frames. A payload over CHUNK_BYTES goes in pieces, and streams that have one take turns:
 *
 *   small frames of other streams ------------------------------> writer
 *   backlogs  [ a: 100 MB | end ]  [ b: 3 MB ]  [ c: 1 MB ] ----> writer, one piece of each in turn, while the link takes it
 *                 what a stream sends after its large message waits behind it
 */
export class FrameSender {
  readonly #writer: FrameWriter;
  /** First come, first served up to MAX_CHUNKED_MESSAGES; within those, in turn. */
  readonly #backlogs = new Map<number, Backlog>();
  readonly #active: Backlog[] = [];
  readonly #onSent: (stream: number) => void;

  /** `onSent`: a stream's backlog is gone, by itself. */
  constructor(writer: FrameWriter, onSent: (stream: number) => void) {
    this.#writer = writer;
    this.#onSent = onSent;
  }

  hasBacklog(stream: number): boolean {
    return this.#backlogs.size > 0 && this.#backlogs.has(stream);
  }

  /** `head` and `payload` together are the payload. */
  send(type: number, stream: number, payload: Uint8Array, head: Uint8Array = noBytes): void {
    const backlog = this.#backlogs.size > 0 ? this.#backlogs.get(stream) : undefined;
    if (backlog) {
      backlog.messages.push({ type, head, payload });
    } else if (head.length + payload.length <= CHUNK_BYTES) {
      this.#writer.frame(type, stream, payload, head);
    } else {
      const fresh: Backlog = { stream, messages: [{ type, head, payload }], sent: 0 };
      this.#backlogs.set(stream, fresh);
      if (this.#active.length < MAX_CHUNKED_MESSAGES) this.#active.push(fresh);
      this.pump();
    }
  }

  /** Forgets what the stream has not sent; its peer must be told by a frame that goes past the backlog. */
  forget(stream: number): void {
    const backlog = this.#backlogs.get(stream);
    if (backlog) this.#remove(backlog);
  }

  /** Writes pieces while the link takes them. To be called when it has room again. */
  pump(): void {
    while (this.#active.length > 0 && this.#writer.waitingBytes < PIECES_AHEAD_BYTES) {
      const backlog = this.#active.shift()!;
      this.#active.push(backlog);
      this.#writeNext(backlog);
      if (backlog.messages.length > 0) continue;
      this.#remove(backlog);
      this.#onSent(backlog.stream);
    }
  }

  close(): void {
    this.#backlogs.clear();
    this.#active.length = 0;
  }

  #writeNext(backlog: Backlog): void {
    const { type, head, payload } = backlog.messages[0]!;
    const { stream, sent } = backlog;
    const total = head.length + payload.length;
    const rest = payload.length - sent;
    if (total <= CHUNK_BYTES || (sent > 0 && rest <= CHUNK_BYTES)) {
      this.#writer.frame(type, stream, payload.subarray(sent), sent > 0 ? noBytes : head);
      backlog.messages.shift();
      backlog.sent = 0;
      return;
    }
    // At least one byte is left for the frame itself.
    const piece = payload.subarray(sent, sent + Math.min(CHUNK_BYTES, rest - 1));
    const size = encodeU32(total);
    this.#writer.frame(FrameType.part, stream, piece, sent > 0 ? size : Buffer.concat([size, head]));
    backlog.sent += piece.length;
  }

  #remove(backlog: Backlog): void {
    this.#backlogs.delete(backlog.stream);
    const at = this.#active.indexOf(backlog);
    if (at < 0) return;
    this.#active.splice(at, 1);
    for (const waiting of this.#backlogs.values()) {
      if (this.#active.includes(waiting)) continue;
      this.#active.push(waiting);
      break;
    }
  }
}

const noBytes = new Uint8Array(0);

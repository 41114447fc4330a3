import type { OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { StatorError } from "../../protocol/errors.ts";
import type { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import { errorBody } from "./error-body.ts";
import { ReaderWatch } from "./reader-watch.ts";

export const DONE_FRAME = "data: [DONE]\n\n";
/** Cheap for short texts; spares the large frame around them a count of its bytes. */
export function isAscii(text: string): boolean {
  return !nonAscii.test(text);
}

const nonAscii = /[^\x00-\x7f]/;

/** A reader that was told that it is too slow has so long to take the message. */
const STALLED_GRACE_MS = 1_000;

export interface SseOptions {
  readonly bufferBytes: number;
  readonly stallTimeoutMs: number;
  readonly wheel: TimerWheel;
  /** The reader has caught up after `paused`. */
  readonly onResume: () => void;
  readonly onStalled: () => void;
}

/**
 * A response of server-sent events. Frames go out as hand-made chunks, straight to the socket: 10 to 15 % less CPU per
 * token than `response.write` on Node 20 at 512 streams. So it looks at `socket.writableLength` itself.
 */
export class SseStream {
  readonly #response: ServerResponse;
  readonly #options: SseOptions;
  /** Set while chunks may bypass the response: the socket is ours, HTTP/1.1, head written. */
  #socket: Socket | undefined;
  #watch: ReaderWatch | undefined;
  #paused = false;
  #ended = false;

  constructor(response: ServerResponse, options: SseOptions) {
    this.#response = response;
    this.#options = options;
    response.once("close", () => this.#watch?.close());
  }

  /** More than `bufferBytes` wait for the reader. */
  get paused(): boolean {
    return this.#paused;
  }

  /** The head is out. */
  get started(): boolean {
    return this.#response.headersSent;
  }

  /** Sends the head (the first time) and the frames, in one system call. `ascii`: the frames are known to be. */
  write(frames: string, ascii: boolean, head: () => OutgoingHttpHeaders): void {
    const response = this.#response;
    if (this.#ended || response.destroyed) return;
    if (response.headersSent) {
      this.#send(frames, ascii);
    } else {
      const { socket } = response; // null while an earlier, pipelined response has the connection
      socket?.cork();
      response.writeHead(200, {
        ...head(),
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
      });
      response.flushHeaders();
      if (socket !== null && response.chunkedEncoding) this.#socket = socket;
      this.#send(frames, ascii);
      socket?.uncork();
    }
    this.#lookAfterReader();
  }

  /** Ends the stream after `[DONE]`. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#response.end();
    this.#lookAfterReader();
  }

  /** Ends the stream with a typed error; the head has been sent. */
  fail(error: StatorError): void {
    if (this.#ended || this.#response.destroyed) return;
    this.#send(`data: ${errorBody(error)}\n\n${DONE_FRAME}`, false);
    this.end();
    if (error.code === "slow_reader") {
      this.#options.wheel.schedule(STALLED_GRACE_MS, () => {
        if (!this.#response.writableFinished) this.#response.destroy();
      });
    }
  }

  #send(frames: string, ascii: boolean): void {
    const socket = this.#socket;
    if (socket === undefined) {
      this.#response.write(frames);
      return;
    }
    const bytes = ascii ? frames.length : Buffer.byteLength(frames);
    socket.write(`${bytes.toString(16)}\r\n${frames}\r\n`, bytes === frames.length ? "latin1" : "utf8");
  }

  #lookAfterReader(): void {
    const held = this.#socket?.writableLength ?? this.#response.writableLength;
    if (held === 0) return;
    const { socket } = this.#response;
    if (socket !== null) {
      this.#watch ??= new ReaderWatch(socket, this.#options.wheel, this.#options.stallTimeoutMs, this.#onStalled);
      this.#watch.start();
    }
    if (held <= this.#options.bufferBytes || this.#paused || this.#ended) return;
    this.#paused = true;
    (this.#socket ?? this.#response).once("drain", this.#onDrain);
  }

  readonly #onDrain = (): void => {
    this.#paused = false;
    if (!this.#ended) this.#options.onResume();
  };

  readonly #onStalled = (): void => {
    if (this.#ended) this.#response.destroy();
    else this.#options.onStalled();
  };
}

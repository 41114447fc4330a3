import type { Usage } from "../../protocol/generate.ts";
import type { Answer, SequenceView } from "../pipeline/answer.ts";
import type { ResponseFormat } from "./response-format.ts";
import { DONE_FRAME, isAscii, type SseStream } from "./sse.ts";

export interface StreamAnswerOptions {
  readonly includeUsage: boolean;
  readonly continuousUsage: boolean;
  /** What the format writes around the text is ASCII: the model's name is, and there are no logprobs. */
  readonly asciiFormat: boolean;
  /** Headers of the answer, asked for when the first frame goes out. */
  readonly head: () => Record<string, string>;
}

/** An answer as server-sent events: all that a batch brought leaves in one write. */
export class StreamAnswer implements Answer {
  readonly #stream: SseStream;
  readonly #format: ResponseFormat;
  readonly #options: StreamAnswerOptions;
  readonly #opened: boolean[] = [];
  #frames = "";
  /** Nothing in `#frames` is outside ASCII. */
  #ascii: boolean;

  constructor(stream: SseStream, format: ResponseFormat, options: StreamAnswerOptions) {
    this.#stream = stream;
    this.#format = format;
    this.#options = options;
    this.#ascii = options.asciiFormat;
  }

  get paused(): boolean {
    return this.#stream.paused;
  }

  get started(): boolean {
    return this.#stream.started;
  }

  deliver(changed: readonly SequenceView[], count: number, usage: () => Usage, last: boolean): void {
    const format = this.#format;
    const soFar = this.#options.continuousUsage && count > 0 ? usage() : undefined;
    for (let i = 0; i < count; i++) {
      const sequence = changed[i]!;
      const { index, finish } = sequence;
      if (this.#opened[index] !== true) {
        this.#opened[index] = true;
        this.#frames += format.openChunk(index);
      }
      if (sequence.hasText) {
        const text = sequence.takeText();
        this.#ascii &&= isAscii(text);
        this.#frames += format.textChunk(index, text, sequence.takeScores(), soFar);
      }
      if (finish !== undefined) this.#frames += format.finishChunk(index, finish, sequence.takeScores(), soFar);
    }
    if (!last) this.#write();
  }

  complete(_all: readonly SequenceView[], usage: Usage): void {
    if (this.#options.includeUsage) this.#frames += this.#format.usageChunk(usage);
    this.#frames += DONE_FRAME;
    this.#write();
    this.#stream.end();
  }

  #write(): void {
    if (this.#frames === "") return;
    const frames = this.#frames;
    const ascii = this.#ascii;
    this.#frames = "";
    this.#ascii = this.#options.asciiFormat;
    this.#stream.write(frames, ascii, this.#options.head);
  }
}

/** An answer as one JSON body: the sequences keep their text until the end. */
export class UnaryAnswer implements Answer {
  readonly paused = false;
  readonly started = false;
  readonly #format: ResponseFormat;
  readonly #send: (body: string) => void;

  constructor(format: ResponseFormat, send: (body: string) => void) {
    this.#format = format;
    this.#send = send;
  }

  deliver(): void {}

  complete(all: readonly SequenceView[], usage: Usage): void {
    this.#send(this.#format.body(all, usage));
  }
}

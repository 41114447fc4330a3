/** One request of a workload, whatever it came from: a recorded trace, a generator, a synthesis. */
export interface TraceRequest {
  /**
   * When it arrives, in ms from the start of the workload. For a follow-up in a session this is what the trace says
   * (or, without a timestamp, the previous arrival plus the delay); a closed loop ignores it and uses `delayMs`.
   */
  readonly arrivalMs: number;
  /** Tokens of the prompt, at least 1. */
  readonly inputTokens: number;
  /** Tokens of the answer, at least 1. */
  readonly outputTokens: number;
  /**
   * What is in the prompt: one id per started block of `blockTokens` tokens. Ids are prefix-chained: equal ids mean
   * that everything up to the end of that block is equal. Empty when the source does not tell; nothing is shared then.
   * Ids beyond the prompt name the blocks of the answer, so that a follow-up can find them in a cache.
   */
  readonly blockIds: readonly number[];
  readonly blockTokens: number;
  /** Requests of one session run one after the other. */
  readonly session?: string;
  /** For a follow-up: how long after the end of the session's previous answer it is sent, in ms. */
  readonly delayMs?: number;
}

/** What a parser reads from: pieces of text that may end anywhere, such as a file's decoded chunks. */
export type TextSource = Iterable<string> | AsyncIterable<string>;

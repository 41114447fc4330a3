import type { FinishReason, Usage } from "../../protocol/generate.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { GenerationOptions } from "./client-request.ts";

/** How a sequence may end towards a client; `abort` is an error instead. */
export type AnswerFinish = Exclude<FinishReason, "abort">;

/** A token with what is known about its probability. */
export interface ScoredToken {
  readonly token: number;
  readonly logprob: number;
  readonly top: readonly { readonly token: number; readonly logprob: number }[];
}

/** What an answer sees of a sequence. */
export interface SequenceView {
  /** Choice index. */
  readonly index: number;
  /** Text since the last call. */
  takeText(): string;
  readonly hasText: boolean;
  /** Tokens since the last call; undefined when no logprobs were asked for. */
  takeScores(): readonly ScoredToken[] | undefined;
  /** Set once the sequence is at its end. */
  readonly finish: AnswerFinish | undefined;
}

/** Where the output of one request goes: a stream of chunks or one body. Its methods must not throw. */
export interface Answer {
  /** The reader is too far behind: hold the engines' credit back until `onResume`. */
  readonly paused: boolean;
  /** The client has begun to receive it: what is known must follow, even before an error. */
  readonly started: boolean;
  /**
   * New text or ends in the first `count` entries of `changed`. Called once per batch of messages; `last`: `complete`
   * follows at once. The array is only valid during the call.
   */
  deliver(changed: readonly SequenceView[], count: number, usage: () => Usage, last: boolean): void;
  /** Every sequence is at its end and was delivered. */
  complete(all: readonly SequenceView[], usage: Usage): void;
}

/** What an answer is made of, known once the request is preprocessed. */
export interface AnswerFacts {
  readonly model: string;
  readonly table: TokenTable;
  readonly generation: GenerationOptions;
  /** The worker that answers; known once the first sequence runs. */
  readonly workerId: () => string | undefined;
  /** The reader has caught up. */
  readonly onResume: () => void;
  /** The reader takes nothing any more. */
  readonly onStalled: () => void;
}

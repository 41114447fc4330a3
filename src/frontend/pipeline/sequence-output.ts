import { StatorError } from "../../protocol/errors.ts";
import type { TokenLogprob } from "../../protocol/generate.ts";
import { SequenceText } from "../postprocess/sequence-text.ts";
import type { AnswerFinish, ScoredToken } from "./answer.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import type { TokenLog } from "./token-log.ts";

/**
 * What one sequence has put out: tokens go in, text, scores and the end come out. Whose tokens they are is nothing to
 * it: characters and stop strings may begin on one worker and end on another.
 */
export class SequenceOutput {
  /** Tokens that belong to the answer. */
  completionTokens = 0;
  /** Set once the text is at its end. */
  finish: AnswerFinish | undefined;
  readonly #log: TokenLog | undefined;
  readonly #text: SequenceText;
  readonly #perToken: boolean;
  readonly #maxTokens: number;
  readonly #vocabularySize: number;
  readonly #topLogprobs: number | undefined;
  #pendingText = "";
  #pendingScores: ScoredToken[] | undefined;

  /** `log` hears of every token. */
  constructor({ model, table, text, request }: SequencePlan, log: TokenLog | undefined) {
    this.#log = log;
    this.#text = new SequenceText(table, text);
    // Tokens behind a stop string in the same message must not count: with stop strings, look after each token.
    this.#perToken = text.stop.length > 0;
    this.#maxTokens = request.stop.maxTokens;
    this.#vocabularySize = model.card.vocabularySize;
    this.#topLogprobs = request.topLogprobs;
    if (this.#topLogprobs !== undefined) this.#pendingScores = [];
  }

  get hasText(): boolean {
    return this.#pendingText !== "";
  }

  /** As many tokens as were asked for: nothing can follow. */
  get isFull(): boolean {
    return this.completionTokens === this.#maxTokens;
  }

  takeText(): string {
    const text = this.#pendingText;
    this.#pendingText = "";
    return text;
  }

  takeScores(): readonly ScoredToken[] | undefined {
    const scores = this.#pendingScores;
    if (scores !== undefined) this.#pendingScores = [];
    return scores;
  }

  /** The first `count` of `tokens`; a stop string among them is the end. Throws for what was not asked for. */
  take(tokens: Uint32Array, count: number, logprobs: readonly TokenLogprob[] | undefined): void {
    const top = this.#topLogprobs;
    if (top !== undefined && (logprobs?.length !== count || logprobs.some((entry) => entry.top.length > top))) {
      throw new StatorError("protocol_error", "The worker did not send the logprobs that were asked for.");
    }
    if (this.completionTokens + count > this.#maxTokens) {
      throw new StatorError("protocol_error", "The worker sent more tokens than were asked for.");
    }
    for (let i = 0; i < count; i++) {
      if (tokens[i]! < this.#vocabularySize) continue;
      throw new StatorError("protocol_error", "The worker sent a token that is not in its model's vocabulary.");
    }
    if (!this.#perToken) {
      this.#push(tokens, 0, count, logprobs);
      return;
    }
    for (let i = 0; i < count && this.finish === undefined; i++) this.#push(tokens, i, i + 1, logprobs);
  }

  /** No more tokens come. */
  end(reason: AnswerFinish): void {
    this.#pendingText += this.#text.finish();
    this.finish = this.#text.stopped === undefined ? reason : "stop";
  }

  #push(tokens: Uint32Array, from: number, to: number, logprobs: readonly TokenLogprob[] | undefined): void {
    this.completionTokens += to - from;
    this.#log?.append(tokens, from, to);
    this.#pendingText += this.#text.push(tokens, from, to);
    if (this.#pendingScores !== undefined && logprobs !== undefined) {
      for (let i = from; i < to; i++) {
        const { logprob, top } = logprobs[i]!;
        this.#pendingScores.push({ token: tokens[i]!, logprob, top });
      }
    }
    if (this.#text.stopped !== undefined) this.finish = "stop";
  }
}

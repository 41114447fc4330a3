/** One request for one sequence, after templates and tokenization: what travels from the frontend to an engine. */
export interface GenerateRequest {
  /** Unique per attempt. The client's own id is only a label in logs. */
  readonly requestId: string;
  /** Served model name. */
  readonly model: string;
  /** The prompt, at least one token. */
  readonly tokens: Uint32Array;
  /**
   * Tokens that another worker has generated already for this sequence, at most `stop.maxTokens`: the engine goes on
   * behind them as if it had made them itself, and streams only what comes after. `maxTokens`, `minTokens` and the usage
   * of the finish count them in. Only for engines whose card says `capabilities.resume`.
   */
  readonly generated?: Uint32Array;
  readonly sampling: SamplingParams;
  readonly stop: StopConditions;
  /** Constrains the output; at most one. */
  readonly grammar?: Grammar;
  /** Number of alternatives to report per token (0 = the chosen token only); absent = no logprobs. */
  readonly topLogprobs?: number;
  /** Milliseconds that the engine may still spend, counted from the arrival. A duration, so clocks need not agree. */
  readonly timeoutMs: number;
}

/** Every value is explicit: engines disagree on defaults. */
export interface SamplingParams {
  /** 0 = greedy. */
  readonly temperature: number;
  /** (0, 1]; 1 = off. */
  readonly topP: number;
  /** 0 = off. */
  readonly topK: number;
  /** [0, 1]; 0 = off. */
  readonly minP: number;
  /** [-2, 2]; 0 = off. */
  readonly presencePenalty: number;
  /** [-2, 2]; 0 = off. */
  readonly frequencyPenalty: number;
  /** (0, 2]; 1 = off. */
  readonly repetitionPenalty: number;
  /** Unsigned 32 bits; absent = the engine picks one. */
  readonly seed?: number;
  /** [token id, bias in -100..100]. */
  readonly logitBias?: readonly (readonly [number, number])[];
}

export interface StopConditions {
  /** At least 1. The engine ends with `length` there, or earlier where its context ends. */
  readonly maxTokens: number;
  /** No end-of-sequence or stop token before this many tokens. */
  readonly minTokens: number;
  /** Generation ends on these; the token itself is not part of the output. */
  readonly stopTokenIds: readonly number[];
  /** Go on after the model's own end tokens (they are then ordinary output). */
  readonly ignoreEos: boolean;
}

export type Grammar =
  | { readonly kind: "json_object" }
  /** `schema` is JSON text, passed on unparsed so that key order and large numbers survive. */
  | { readonly kind: "json_schema"; readonly schema: string }
  /** llama.cpp's GBNF. */
  | { readonly kind: "gbnf"; readonly grammar: string };

/** Why a sequence ended. `abort` = stopped by the caller's signal. */
export type FinishReason = "stop" | "length" | "abort";

export interface TokenLogprob {
  /** Natural logarithm of the probability. */
  readonly logprob: number;
  /** Exactly `topLogprobs` entries, most likely first. */
  readonly top: readonly { readonly token: number; readonly logprob: number }[];
}

export interface Usage {
  readonly promptTokens: number;
  /** `generated` and the tokens in all deltas; an end-of-sequence or stop token is not counted. */
  readonly completionTokens: number;
  /** Prompt tokens that the engine took from its KV cache; at most promptTokens - 1. */
  readonly cachedTokens: number;
}

export interface Finish {
  readonly reason: FinishReason;
  /** The end or stop token that ended the sequence, when one did. */
  readonly stopTokenId?: number;
  readonly usage: Usage;
}

/**
 * One step of a sequence. A stream is any number of deltas; the last one, and only it, has `finish`.
 * A failed stream throws a StatorError instead of finishing.
 */
export interface TokenDelta {
  /** New tokens, maybe none. */
  readonly tokens: Uint32Array;
  /** One entry per token of `tokens`, when the request asked for logprobs. */
  readonly logprobs?: readonly TokenLogprob[];
  readonly finish?: Finish;
}

import { type GenerateRequest, StatorError } from "../../protocol/index.ts";

export interface RequestLimits {
  readonly vocabularySize: number;
  readonly contextLength: number;
  readonly maxTopLogprobs: number;
  isEndToken(token: number): boolean;
}

/**
 * Throws for a request that the engine cannot run. An id outside the vocabulary would make llama.cpp read foreign
 * memory, so nothing gets past this unchecked, whoever sent it.
 */
export function checkRequest(request: GenerateRequest, limits: RequestLimits): void {
  const { tokens, sampling, stop, topLogprobs } = request;
  if (tokens.length === 0) throw new StatorError("invalid_value", "The prompt has no tokens.", { param: "prompt" });
  if (tokens.length >= limits.contextLength) {
    throw new StatorError(
      "context_length_exceeded",
      `The prompt has ${tokens.length} tokens; prompt and output together may have ${limits.contextLength}.`,
      { param: "prompt" },
    );
  }
  for (const token of tokens) requireToken(token, limits, "prompt");
  for (const token of stop.stopTokenIds) requireToken(token, limits, "stop_token_ids");
  for (const [token, bias] of sampling.logitBias ?? []) {
    requireToken(token, limits, "logit_bias");
    requireRange(bias, -100, 100, "logit_bias");
  }
  requireRange(sampling.temperature, 0, Number.MAX_VALUE, "temperature");
  requireRange(sampling.topP, Number.MIN_VALUE, 1, "top_p");
  requireRange(sampling.topK, 0, Number.MAX_SAFE_INTEGER, "top_k");
  requireRange(sampling.minP, 0, 1, "min_p");
  requireRange(sampling.presencePenalty, -2, 2, "presence_penalty");
  requireRange(sampling.frequencyPenalty, -2, 2, "frequency_penalty");
  requireRange(sampling.repetitionPenalty, Number.MIN_VALUE, 2, "repetition_penalty");
  if (sampling.seed !== undefined) requireRange(sampling.seed, 0, 0xffffffff, "seed");
  requireRange(stop.maxTokens, 1, Number.MAX_SAFE_INTEGER, "max_tokens");
  requireRange(stop.minTokens, 0, Number.MAX_SAFE_INTEGER, "min_tokens");
  if (topLogprobs !== undefined) requireRange(topLogprobs, 0, limits.maxTopLogprobs, "top_logprobs");
  checkGenerated(request, limits);
}

/** What another worker has generated is what this one could have: in the vocabulary, not too much, and not at its end. */
function checkGenerated({ tokens, generated, stop }: GenerateRequest, limits: RequestLimits): void {
  if (generated === undefined) return;
  const stopIds = new Set(stop.stopTokenIds);
  for (const token of generated) {
    requireToken(token, limits, "generated");
    if (stopIds.has(token) || (!stop.ignoreEos && limits.isEndToken(token))) {
      throw new StatorError("invalid_value", `Nothing can follow token ${token}, which ends the sequence.`, {
        param: "generated",
      });
    }
  }
  requireRange(generated.length, 0, Math.min(stop.maxTokens, limits.contextLength - tokens.length), "generated");
}

function requireToken(token: number, limits: RequestLimits, param: string): void {
  if (Number.isInteger(token) && token >= 0 && token < limits.vocabularySize) return;
  throw new StatorError("invalid_value", `Token id ${token} is outside of the vocabulary (${limits.vocabularySize}).`, {
    param,
  });
}

function requireRange(value: number, least: number, most: number, param: string): void {
  if (value >= least && value <= most) return;
  throw new StatorError("invalid_value", `${param} is ${value}, which is out of range.`, { param });
}

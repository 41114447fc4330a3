import { StatorError } from "../../protocol/errors.ts";
import type { SamplingParams } from "../../protocol/generate.ts";
import type { ModelCard } from "../../protocol/model-card.ts";
import type { GenerationOptions } from "./client-request.ts";

/** Request field -> member of the engine's parameters, and whether the value asks for something. */
const samplingFields: readonly {
  readonly field: string;
  readonly member: keyof SamplingParams;
  readonly neutral: unknown;
}[] = [
  { field: "temperature", member: "temperature", neutral: 1 },
  { field: "top_p", member: "topP", neutral: 1 },
  { field: "top_k", member: "topK", neutral: 0 },
  { field: "min_p", member: "minP", neutral: 0 },
  { field: "presence_penalty", member: "presencePenalty", neutral: 0 },
  { field: "frequency_penalty", member: "frequencyPenalty", neutral: 0 },
  { field: "repetition_penalty", member: "repetitionPenalty", neutral: 1 },
  { field: "seed", member: "seed", neutral: undefined },
];

/** Refuses what this model's engine cannot honour, and token ids that it does not have. */
export function checkModelLimits(generation: GenerationOptions, card: ModelCard): void {
  const { parameters, grammars, maxTopLogprobs } = card.capabilities;
  const requireParameter = (member: string, field: string): void => {
    if (!parameters.includes(member)) throw unsupportedBy(card, field, field);
  };
  for (const { field, member, neutral } of samplingFields) {
    const value = generation.sampling[member];
    if (value !== undefined && value !== neutral) requireParameter(member, field);
  }
  const logitBias = generation.sampling.logitBias ?? [];
  if (logitBias.length > 0) requireParameter("logitBias", "logit_bias");
  for (const [id] of logitBias) requireToken(card, id, `logit_bias.${id}`);
  if (generation.minTokens > 0) requireParameter("minTokens", "min_tokens");
  if (generation.ignoreEos) requireParameter("ignoreEos", "ignore_eos");
  if (generation.stopTokenIds.length > 0) requireParameter("stopTokenIds", "stop_token_ids");
  for (let i = 0; i < generation.stopTokenIds.length; i++) {
    requireToken(card, generation.stopTokenIds[i]!, `stop_token_ids[${i}]`);
  }
  if (generation.grammar !== undefined && !grammars.includes(generation.grammar.kind)) {
    throw unsupportedBy(card, "response_format", `response_format of this type`);
  }
  const { topLogprobs } = generation;
  if (topLogprobs !== undefined && maxTopLogprobs < 0) throw unsupportedBy(card, "logprobs", "logprobs");
  if (topLogprobs !== undefined && topLogprobs > maxTopLogprobs) {
    throw new StatorError(
      "unsupported_parameter",
      `Model ${JSON.stringify(card.name)} reports at most ${maxTopLogprobs} alternatives per token, not ${topLogprobs}.`,
      { param: topLogprobs > 0 ? "top_logprobs" : "logprobs" },
    );
  }
}

/** Refuses ids outside the vocabulary, naming the entry. */
export function checkTokenIds(tokens: Uint32Array, card: ModelCard, param: string): void {
  for (let i = 0; i < tokens.length; i++) {
    if (tokens[i]! >= card.vocabularySize) requireToken(card, tokens[i]!, `${param}[${i}]`);
  }
}

function requireToken(card: ModelCard, id: number, param: string): void {
  if (id < card.vocabularySize) return;
  throw new StatorError(
    "invalid_value",
    `${param}: the vocabulary of model ${JSON.stringify(card.name)} has ${card.vocabularySize} tokens; there is no token ${id}.`,
    { param },
  );
}

function unsupportedBy(card: ModelCard, param: string, what: string): StatorError {
  return new StatorError(
    "unsupported_parameter",
    `The engine of model ${JSON.stringify(card.name)} does not support ${what}.`,
    { param },
  );
}

import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest, SamplingParams } from "../../protocol/generate.ts";
import type { ModelCard } from "../../protocol/model-card.ts";

/** Member -> its name in the APIs, and the value that asks for nothing. */
const sampling: Record<keyof SamplingParams, readonly [name: string, neutral: unknown]> = {
  temperature: ["temperature", 1],
  topP: ["top_p", 1],
  topK: ["top_k", 0],
  minP: ["min_p", 0],
  presencePenalty: ["presence_penalty", 0],
  frequencyPenalty: ["frequency_penalty", 0],
  repetitionPenalty: ["repetition_penalty", 1],
  seed: ["seed", undefined],
  logitBias: ["logit_bias", undefined],
};

/** Throws what rule 4 of the engine contract asks for: nothing that the card does not promise is silently dropped. */
export function refuseUnsupported(request: GenerateRequest, card: ModelCard): void {
  const { parameters, grammars, maxTopLogprobs, resume = false } = card.capabilities;
  const { stop, tokens, grammar, topLogprobs, generated } = request;
  for (const [member, [name, neutral]] of Object.entries(sampling)) {
    const value = request.sampling[member as keyof SamplingParams];
    const asks = value !== undefined && value !== neutral && !(Array.isArray(value) && value.length === 0);
    if (asks && !parameters.includes(member)) throw unsupported(card, name);
  }
  if (stop.minTokens > 0 && !parameters.includes("minTokens")) throw unsupported(card, "min_tokens");
  if (stop.ignoreEos && !parameters.includes("ignoreEos")) throw unsupported(card, "ignore_eos");
  if (stop.stopTokenIds.length > 0 && !parameters.includes("stopTokenIds")) throw unsupported(card, "stop_token_ids");
  if (grammar && !grammars.includes(grammar.kind)) throw unsupported(card, "response_format");
  if (topLogprobs !== undefined && topLogprobs > maxTopLogprobs) throw unsupported(card, "logprobs");
  if (generated !== undefined && !resume) throw unsupported(card, "generated");
  if (tokens.length === 0) throw new StatorError("invalid_value", "The prompt is empty.", { param: "prompt" });
  if (tokens.length >= card.contextLength) {
    throw new StatorError(
      "context_length_exceeded",
      `The prompt has ${tokens.length} tokens; with one token of output at most ${card.contextLength} fit.`,
      { param: "prompt" },
    );
  }
  const odd = tokens.find((token) => token >= card.vocabularySize);
  if (odd !== undefined) {
    throw new StatorError("invalid_value", `Token ${odd} is not in the vocabulary.`, { param: "prompt" });
  }
}

function unsupported(card: ModelCard, param: string): StatorError {
  const name = JSON.stringify(card.name);
  return new StatorError("unsupported_parameter", `The engine of model ${name} does not support ${param}.`, { param });
}

import { StatorError } from "../../protocol/errors.ts";
import type { SamplingParams, StopConditions } from "../../protocol/generate.ts";
import type { ModelCard } from "../../protocol/model-card.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { GenerationOptions } from "./client-request.ts";
import type { TokenizedPrompt } from "./preprocess.ts";
import type { SequencePlan } from "./sequence-plan.ts";

/** Output tokens of a text completion whose request does not say. */
const DEFAULT_COMPLETION_TOKENS = 16;

export interface PlanContext {
  readonly model: ServedModel;
  readonly table: TokenTable;
  readonly requestId: string;
  readonly deadlineAt: number;
  readonly wantedWorkerId: string | undefined;
  readonly traceparent: string | undefined;
}

/** One independent sequence per prompt and choice; choice i has seed + i. */
export function planSequences(
  prompts: readonly TokenizedPrompt[],
  generation: GenerationOptions,
  endpoint: "chat" | "completions",
  context: PlanContext,
): SequencePlan[] {
  const { card } = context.model;
  const sampling = resolveSampling(generation, card);
  const plans: SequencePlan[] = [];
  for (const prompt of prompts) {
    const stop = resolveStop(prompt, generation, endpoint, card);
    for (let choice = 0; choice < generation.choices; choice++) {
      plans.push({
        index: plans.length,
        model: context.model,
        request: {
          model: card.name,
          tokens: prompt.tokens,
          sampling: choice === 0 ? sampling : withSeed(sampling, choice),
          stop,
          ...(generation.grammar === undefined ? {} : { grammar: generation.grammar }),
          ...(generation.topLogprobs === undefined ? {} : { topLogprobs: generation.topLogprobs }),
        },
        table: context.table,
        text: {
          stop: generation.stop,
          includeStop: generation.includeStop,
          skipSpecial: generation.skipSpecial,
          minTokens: generation.minTokens,
        },
        wantedWorkerId: context.wantedWorkerId,
        requestId: plans.length === 0 ? context.requestId : `${context.requestId}-${plans.length}`,
        deadlineAt: context.deadlineAt,
        traceparent: context.traceparent,
      });
    }
  }
  return plans;
}

function resolveSampling({ sampling }: GenerationOptions, { defaults }: ModelCard): SamplingParams {
  return {
    temperature: defaults.temperature ?? 1,
    topP: defaults.topP ?? 1,
    topK: defaults.topK ?? 0,
    minP: defaults.minP ?? 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    repetitionPenalty: 1,
    ...sampling,
  };
}

function withSeed(sampling: SamplingParams, choice: number): SamplingParams {
  return sampling.seed === undefined ? sampling : { ...sampling, seed: (sampling.seed + choice) >>> 0 };
}

function resolveStop(
  prompt: TokenizedPrompt,
  generation: GenerationOptions,
  endpoint: "chat" | "completions",
  card: ModelCard,
): StopConditions {
  const room = card.contextLength - prompt.tokens.length;
  const { maxTokens: asked, minTokens } = generation;
  if (asked !== undefined && asked.value > room) {
    throw new StatorError(
      "context_length_exceeded",
      `The context of model ${JSON.stringify(card.name)} is ${card.contextLength} tokens: ${prompt.tokens.length} in ${prompt.param} leave room for ${room}, less than ${asked.param} (${asked.value}).`,
      { param: asked.param },
    );
  }
  const maxTokens = asked?.value ?? (endpoint === "chat" ? room : Math.min(DEFAULT_COMPLETION_TOKENS, room));
  if (minTokens > maxTokens) {
    throw new StatorError(
      "invalid_value",
      `min_tokens (${minTokens}) is over the limit of ${maxTokens} output tokens.`,
      {
        param: "min_tokens",
      },
    );
  }
  return { maxTokens, minTokens, stopTokenIds: generation.stopTokenIds, ignoreEos: generation.ignoreEos };
}

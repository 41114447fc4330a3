import type { SequenceEvaluateOptions } from "node-llama-cpp";
import type { GenerateRequest } from "../../protocol/index.ts";
import type { GrammarProgress } from "./grammar-progress.ts";
import { LogitBias, type Native } from "./native.ts";

/** llama.cpp takes this seed as "pick one". */
const reservedSeed = 0xffffffff;
/** Keeps a token out. */
const banned = Number.NEGATIVE_INFINITY;
/** The same where a grammar may leave no other token: then the grammar wins. */
const nearlyBanned = -10_000;
/** Below this the softmax overflows; the result would be greedy anyway. */
const smallestTemperature = 1e-4;

/** How the tokens of one request are chosen. Keeps what depends on the tokens so far. */
export interface Sampling {
  readonly options: SequenceEvaluateOptions;
  /** Probabilities that the sampler reports are those of the plain model, so that no second look is needed. */
  readonly reportsPlainProbabilities: boolean;
  /** To be called with every token that was generated, before the next one is sampled. */
  accept(token: number): void;
}

/**
 * Order of effects: logit_bias, presence and frequency penalty (over generated tokens, as OpenAI defines them),
 * repetition penalty (over prompt and generated tokens), grammar, then top_k, top_p, min_p and temperature.
 */
export function createSampling(
  native: Native,
  request: GenerateRequest,
  context: {
    /** Ids that must not come before `minTokens`. */
    readonly endIds: readonly number[];
    readonly grammar: GrammarProgress | undefined;
    readonly randomSeed: () => number;
    readonly contextLength: number;
  },
): Sampling {
  const { sampling, stop } = request;
  const bias = new LogitBias(native);
  const requested = new Map(sampling.logitBias ?? []);
  const counts = new Map<number, number>();
  const penalises = sampling.presencePenalty !== 0 || sampling.frequencyPenalty !== 0;
  const repeats = sampling.repetitionPenalty !== 1;
  const history = repeats ? Array.from(request.tokens) : [];
  const ban = context.grammar === undefined ? banned : nearlyBanned;
  const bannedIds = new Set(stop.minTokens > 0 ? context.endIds : []);
  let generated = 0;

  const update = (token: number): void => {
    if (bannedIds.has(token)) {
      bias.set(token, ban);
      return;
    }
    const count = counts.get(token) ?? 0;
    const penalty = count === 0 ? 0 : sampling.presencePenalty + sampling.frequencyPenalty * count;
    bias.set(token, (requested.get(token) ?? 0) - penalty);
  };
  for (const token of requested.keys()) update(token);
  for (const token of bannedIds) update(token);

  const temperature = sampling.temperature < smallestTemperature ? 0 : sampling.temperature;
  const seed = sampling.seed ?? context.randomSeed();
  const usesBias = requested.size > 0 || penalises || bannedIds.size > 0;
  const truncates = temperature > 0 && (sampling.topP < 1 || sampling.topK > 0 || sampling.minP > 0);
  const options: SequenceEvaluateOptions = {
    temperature,
    topP: sampling.topP,
    topK: sampling.topK,
    minP: sampling.minP,
    seed: seed === reservedSeed ? reservedSeed - 1 : seed,
    yieldEogToken: true,
    contextShift: neverShift,
    ...(usesBias ? { tokenBias: bias.handle } : {}),
    ...(context.grammar === undefined ? {} : { grammarEvaluationState: context.grammar.forSampler }),
    ...(repeats
      ? {
          repeatPenalty: {
            // The function is asked before every token; a plain array would forget the generated ones.
            punishTokens: () => history as ReturnType<typeof Array.from<never>>,
            maxPunishTokens: context.contextLength,
            penalty: sampling.repetitionPenalty,
            presencePenalty: 0,
            frequencyPenalty: 0,
          },
        }
      : {}),
  };

  return {
    options,
    reportsPlainProbabilities:
      !usesBias && !repeats && !truncates && context.grammar === undefined && (temperature === 0 || temperature === 1),
    accept(token) {
      generated++;
      if (repeats) history.push(token);
      if (penalises) {
        counts.set(token, (counts.get(token) ?? 0) + 1);
        update(token);
      }
      if (bannedIds.size > 0 && generated >= stop.minTokens) {
        const freed = [...bannedIds];
        bannedIds.clear();
        for (const id of freed) update(id);
      }
    },
  };
}

/** Losing history silently is never right: the caller stops before the context ends, so this is not reached. */
export const neverShift = {
  strategy: (): never => {
    throw new Error("The context is full.");
  },
};

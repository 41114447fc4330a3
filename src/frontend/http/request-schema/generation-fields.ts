import { z } from "zod";
import { StatorError } from "../../../protocol/errors.ts";
import type { SamplingParams } from "../../../protocol/generate.ts";
import type { GenerationOptions } from "../../pipeline/client-request.ts";
import { shorten } from "./fields.ts";
import { check, describe, invalidValue } from "./issues.ts";
import { parseTokenIds } from "./prompt-input.ts";
import { parseResponseFormat } from "./response-format.ts";

export const MAX_CHOICES = 128;
const MAX_STOP_STRINGS = 32;
const MAX_STOP_CHARACTERS = 1024;
const MAX_LOGIT_BIASES = 4096;

const penalty = z.number().min(-2).max(2).optional();
const flag = z.boolean().optional();
const count = z.int().min(1).optional();

/** Fields that chat and text completions share. What needs a message of its own is checked by hand, below. */
const generationSchema = z.strictObject({
  stream: flag,
  n: z.int().min(1).max(MAX_CHOICES).optional(),
  max_tokens: count,
  temperature: z.number().min(0).max(2).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: z.int().min(-1).max(0x7fffffff).optional(),
  min_p: z.number().min(0).max(1).optional(),
  presence_penalty: penalty,
  frequency_penalty: penalty,
  repetition_penalty: z.number().gt(0).max(2).optional(),
  seed: z.int().optional(),
  min_tokens: z.int().min(0).optional(),
  ignore_eos: flag,
  include_stop_str_in_output: flag,
  skip_special_tokens: flag,
  stream_options: z
    .strictObject({
      include_usage: z.boolean().nullish(),
      continuous_usage_stats: z.boolean().nullish(),
      include_obfuscation: z.boolean().nullish(),
    })
    .optional(),
});

export const generationFields: readonly string[] = [
  ...Object.keys(generationSchema.shape),
  "stop",
  "stop_token_ids",
  "logit_bias",
  "response_format",
];

/** What an endpoint has parsed by itself, in its own form. */
export interface EndpointPart {
  readonly topLogprobs: number | undefined;
  readonly maxCompletionTokens?: number | undefined;
}

export interface ParsedGeneration {
  readonly generation: GenerationOptions;
  readonly ignored: readonly string[];
}

/**
 * `fields`: the honoured fields of the body, those of the endpoint taken out. `rawBody` gives the body's text, for
 * values that must travel unparsed.
 */
export function parseGeneration(
  fields: Readonly<Record<string, unknown>>,
  endpoint: EndpointPart,
  rawBody: () => string,
): ParsedGeneration {
  const { stop, stop_token_ids, logit_bias, response_format, ...simple } = fields;
  const given = check(generationSchema, simple);
  const streamOptions = given.stream_options;
  if (streamOptions !== undefined && given.stream !== true) {
    throw new StatorError("invalid_value", "stream_options is only allowed together with stream: true.", {
      param: "stream_options",
    });
  }
  const maxTokens = oneLimit(given.max_tokens, endpoint.maxCompletionTokens);
  const minTokens = given.min_tokens ?? 0;
  if (maxTokens !== undefined && minTokens > maxTokens.value) {
    throw invalidValue("min_tokens", `at most ${maxTokens.param} (${maxTokens.value})`, minTokens);
  }
  return {
    generation: {
      stream: given.stream ?? false,
      includeUsage: streamOptions?.include_usage ?? false,
      continuousUsage: streamOptions?.continuous_usage_stats ?? false,
      choices: given.n ?? 1,
      maxTokens,
      sampling: samplingOf(given, parseLogitBias(logit_bias)),
      minTokens,
      ignoreEos: given.ignore_eos ?? false,
      stopTokenIds: parseStopTokenIds(stop_token_ids),
      stop: parseStop(stop),
      includeStop: given.include_stop_str_in_output ?? false,
      skipSpecial: given.skip_special_tokens ?? true,
      topLogprobs: endpoint.topLogprobs,
      grammar: response_format === undefined ? undefined : parseResponseFormat(response_format, rawBody),
    },
    ignored: typeof streamOptions?.include_obfuscation === "boolean" ? ["stream_options.include_obfuscation"] : [],
  };
}

function samplingOf(
  given: z.output<typeof generationSchema>,
  logitBias: SamplingParams["logitBias"],
): Partial<SamplingParams> {
  return {
    ...(given.temperature === undefined ? {} : { temperature: given.temperature }),
    ...(given.top_p === undefined ? {} : { topP: given.top_p }),
    ...(given.top_k === undefined ? {} : { topK: Math.max(given.top_k, 0) }), // -1 is another way to say off
    ...(given.min_p === undefined ? {} : { minP: given.min_p }),
    ...(given.presence_penalty === undefined ? {} : { presencePenalty: given.presence_penalty }),
    ...(given.frequency_penalty === undefined ? {} : { frequencyPenalty: given.frequency_penalty }),
    ...(given.repetition_penalty === undefined ? {} : { repetitionPenalty: given.repetition_penalty }),
    ...(given.seed === undefined ? {} : { seed: seedOf(given.seed) }),
    ...(logitBias === undefined ? {} : { logitBias }),
  };
}

/** Any safe integer as 32 bits. Both halves count, so that seeds that differ in any bit rarely meet. */
function seedOf(seed: number): number {
  const high = Math.floor(seed / 4294967296);
  return ((seed >>> 0) ^ (seed >= 0 ? Math.imul(high, 0x9e3779b1) : Math.imul(high + 1, 0x9e3779b1))) >>> 0;
}

function oneLimit(
  maxTokens: number | undefined,
  maxCompletionTokens: number | undefined,
): GenerationOptions["maxTokens"] {
  if (maxTokens !== undefined && maxCompletionTokens !== undefined && maxTokens !== maxCompletionTokens) {
    throw new StatorError(
      "invalid_value",
      `max_tokens (${maxTokens}) and max_completion_tokens (${maxCompletionTokens}) differ; send one of them.`,
      { param: "max_completion_tokens" },
    );
  }
  if (maxCompletionTokens !== undefined) return { value: maxCompletionTokens, param: "max_completion_tokens" };
  return maxTokens === undefined ? undefined : { value: maxTokens, param: "max_tokens" };
}

function parseStop(value: unknown): readonly string[] {
  if (value === undefined) return [];
  const list: readonly unknown[] = Array.isArray(value) ? value : [value];
  if (list.length > MAX_STOP_STRINGS) {
    throw new StatorError(
      "invalid_value",
      `stop has ${list.length} entries; at most ${MAX_STOP_STRINGS} are allowed.`,
      {
        param: "stop",
      },
    );
  }
  return list.map((item, index) => {
    const param = Array.isArray(value) ? `stop[${index}]` : "stop";
    if (typeof item !== "string")
      throw invalidValue(param, param === "stop" ? "a string or an array of strings" : "a string", item);
    if (item === "") throw invalidValue(param, "a string of at least one character", item);
    if (item.length > MAX_STOP_CHARACTERS)
      throw invalidValue(param, `at most ${MAX_STOP_CHARACTERS} characters long`, item);
    return item;
  });
}

function parseStopTokenIds(value: unknown): readonly number[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) throw invalidValue("stop_token_ids", "an array of token ids", value);
  if (value.length > 256) {
    throw new StatorError("invalid_value", `stop_token_ids has ${value.length} entries; at most 256 are allowed.`, {
      param: "stop_token_ids",
    });
  }
  return Array.from(parseTokenIds(value, "stop_token_ids"));
}

function parseLogitBias(value: unknown): SamplingParams["logitBias"] {
  if (value === undefined) return undefined;
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidValue("logit_bias", "an object from token ids to biases", value);
  }
  const entries = Object.entries(value);
  if (entries.length > MAX_LOGIT_BIASES) {
    throw new StatorError(
      "invalid_value",
      `logit_bias has ${entries.length} entries; at most ${MAX_LOGIT_BIASES} are allowed.`,
      {
        param: "logit_bias",
      },
    );
  }
  return entries.map(([key, bias]) => {
    const param = `logit_bias.${shorten(key, 100)}`;
    const id = Number(key);
    if (!/^\d{1,10}$/.test(key) || id > 0xffffffff) {
      throw new StatorError("invalid_value", `The keys of logit_bias must be token ids, but one is ${describe(key)}.`, {
        param,
      });
    }
    if (typeof bias !== "number" || !(bias >= -100 && bias <= 100)) {
      throw invalidValue(param, "a number from -100 to 100", bias);
    }
    return [id, bias] as const;
  });
}

import { StatorError } from "./errors.ts";
import type { Finish, FinishReason, GenerateRequest, SamplingParams, TokenLogprob, Usage } from "./generate.ts";

/*
 * What a peer sent has the types that the rest of the program believes in. Whether the values make sense to a model is
 * the engine's to judge. Everything that does not fit is a `protocol_error`.
 */

type Members = Readonly<Record<string, unknown>>;

const finishReasons: readonly unknown[] = ["stop", "length", "abort"] satisfies FinishReason[];

const samplingNumbers = [
  "temperature",
  "topP",
  "topK",
  "minP",
  "presencePenalty",
  "frequencyPenalty",
  "repetitionPenalty",
] as const satisfies (keyof SamplingParams)[];

/** A generate request, but for its tokens. */
export function checkGenerateRequest(value: unknown): asserts value is Omit<GenerateRequest, "tokens" | "generated"> {
  const what = "a generate request";
  const request = membersOf(value, what);
  const sampling = membersOf(request.sampling, what);
  const stop = membersOf(request.stop, what);
  const { seed, logitBias } = sampling;
  const { grammar, topLogprobs } = request;
  const fits =
    typeof request.requestId === "string" &&
    typeof request.model === "string" &&
    Number.isFinite(request.timeoutMs) &&
    samplingNumbers.every((name) => Number.isFinite(sampling[name])) &&
    (seed === undefined || Number.isFinite(seed)) &&
    (logitBias === undefined || isList(logitBias, isBias)) &&
    Number.isFinite(stop.maxTokens) &&
    Number.isFinite(stop.minTokens) &&
    isList(stop.stopTokenIds, Number.isFinite) &&
    typeof stop.ignoreEos === "boolean" &&
    (grammar === undefined || isGrammar(membersOf(grammar, what))) &&
    (topLogprobs === undefined || Number.isInteger(topLogprobs));
  if (!fits) throw notA(what);
}

/** One entry per token, each `[logprob, token, logprob, token, logprob, ...]`. */
export function readLogprobs(value: unknown, count: number): TokenLogprob[] {
  if (!Array.isArray(value) || value.length !== count) throw notA("a token delta");
  return value.map((flat: unknown) => {
    if (!Array.isArray(flat) || flat.length % 2 === 0) throw notA("a token delta");
    const numbers = flat as readonly unknown[];
    const top: { token: number; logprob: number }[] = [];
    for (let i = 1; i < numbers.length; i += 2) {
      top.push({ token: readTokenId(numbers[i]), logprob: readLogprob(numbers[i + 1]) });
    }
    return { logprob: readLogprob(numbers[0]), top };
  });
}

export function readFinish(value: unknown): Finish {
  const { reason, stopTokenId, usage } = membersOf(value, "a token delta");
  if (!finishReasons.includes(reason)) throw notA("a token delta");
  return {
    reason: reason as FinishReason,
    ...(stopTokenId === undefined ? {} : { stopTokenId: readTokenId(stopTokenId) }),
    usage: readUsage(usage),
  };
}

/** The offsets begin and end within `length` bytes and never go back. */
export function checkOffsets(offsets: Uint32Array, tokens: number, length: number): void {
  let fits = offsets.length === tokens + 1 && offsets.at(-1)! <= length;
  for (let i = 1; fits && i < offsets.length; i++) fits = offsets[i]! >= offsets[i - 1]!;
  if (!fits) throw notA("a token table");
}

/** The error for bytes that are not what they should be. */
export function notA(what: string): StatorError {
  return new StatorError("protocol_error", `The peer sent something that is not ${what}.`);
}

function readUsage(value: unknown): Usage {
  const { promptTokens, completionTokens, cachedTokens } = membersOf(value, "a token delta");
  if (!isCount(promptTokens) || !isCount(completionTokens) || !isCount(cachedTokens) || cachedTokens > promptTokens) {
    throw notA("a token delta");
  }
  return { promptTokens, completionTokens, cachedTokens };
}

function readTokenId(value: unknown): number {
  if (!isCount(value) || value > 0xffffffff) throw notA("a token delta");
  return value;
}

function readLogprob(value: unknown): number {
  if (typeof value === "number" && (Number.isFinite(value) || value === Number.NEGATIVE_INFINITY)) return value;
  throw notA("a token delta");
}

function membersOf(value: unknown, what: string): Members {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw notA(what);
  return value as Members;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isList(value: unknown, fits: (item: unknown) => boolean): boolean {
  return Array.isArray(value) && value.every((item: unknown) => fits(item));
}

function isBias(value: unknown): boolean {
  return isList(value, Number.isFinite) && (value as unknown[]).length === 2;
}

function isGrammar({ kind, schema, grammar }: Members): boolean {
  if (kind === "json_schema") return typeof schema === "string";
  if (kind === "gbnf") return typeof grammar === "string";
  return kind === "json_object";
}

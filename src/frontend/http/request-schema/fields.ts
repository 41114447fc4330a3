import { closest } from "../../../protocol/closest.ts";
import { StatorError } from "../../../protocol/errors.ts";

/*
 * Every top-level field of a request is on one of three lists. Honoured: does what the documentation says. Harmless:
 * changes nothing about the answer, so it is ignored and named in the header x-stator-ignored. All else is refused by
 * name: a field that is silently dropped is an answer that the client did not ask for.
 */

const harmless = new Set([
  "user",
  "store",
  "metadata",
  "service_tier",
  "safety_identifier",
  "prompt_cache_key",
  "prompt_cache_retention",
]);

/** Known fields that this server cannot honour yet, with the values that ask for nothing. */
const unsupported = new Map<string, (value: unknown) => boolean>([
  ...["tools", "functions"].map((name) => [name, isEmptyArray] as const),
  ["echo", (value) => value === false],
  ["tool_choice", (value) => value === "none"],
  ...[
    "allowed_token_ids",
    "audio",
    "bad_words",
    "best_of",
    "cache_salt",
    "chat_template",
    "chat_template_args",
    "chat_template_kwargs",
    "detokenize",
    "function_call",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "length_penalty",
    "modalities",
    "nvext",
    "parallel_tool_calls",
    "prediction",
    "prompt_embeds",
    "prompt_logprobs",
    "reasoning_effort",
    "return_tokens_as_token_ids",
    "structured_outputs",
    "suffix",
    "thinking",
    "use_beam_search",
    "verbosity",
    "web_search_options",
  ].map((name) => [name, () => false] as const),
]);

export interface SortedFields {
  /** Own properties only, without nulls; no prototype. */
  readonly honoured: Readonly<Record<string, unknown>>;
  readonly ignored: readonly string[];
}

/** Sorts the fields of a body. `null` counts as absent: SDKs send it for options that are not set. */
export function sortFields(body: unknown, honouredNames: ReadonlySet<string>): SortedFields {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new StatorError("invalid_json", "The body must be one JSON object.");
  }
  const honoured: Record<string, unknown> = Object.create(null);
  const ignored: string[] = [];
  for (const [name, value] of Object.entries(body)) {
    if (honouredNames.has(name)) {
      if (value !== null) honoured[name] = value;
    } else if (harmless.has(name)) {
      if (value !== null) ignored.push(name);
    } else {
      refuse(name, value, honouredNames);
    }
  }
  return { honoured, ignored };
}

function refuse(name: string, value: unknown, honouredNames: ReadonlySet<string>): void {
  const asksForNothing = unsupported.get(name);
  if (asksForNothing !== undefined) {
    if (value === null || asksForNothing(value)) return;
    throw new StatorError("unsupported_parameter", `${name} is not supported by this server.`, { param: name });
  }
  throw unknownField(name, name, [...honouredNames, ...harmless, ...unsupported.keys()]);
}

/** `param` is the whole path, `name` its last part. */
export function unknownField(param: string, name: string, known: readonly string[]): StatorError {
  const shown = JSON.stringify(shorten(param, 200));
  const guess = closest(name, known);
  const suggestion = guess === undefined ? "" : ` Did you mean ${guess}?`;
  return new StatorError("unknown_parameter", `There is no parameter ${shown}.${suggestion}`, {
    param: shorten(param, 200),
  });
}

export function shorten(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length)}...`;
}

function isEmptyArray(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

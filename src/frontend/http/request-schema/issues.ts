import { z } from "zod";
import { type ErrorCode, StatorError } from "../../../protocol/errors.ts";
import { shorten, unknownField } from "./fields.ts";

/** The value that passed `schema`, or the first problem as a StatorError. `at` is the path of `value` in the body. */
export function check<Schema extends z.ZodType>(schema: Schema, value: unknown, at = ""): z.output<Schema> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  throw issueToError(result.error.issues[0]!, value, at);
}

export const modelName: z.ZodString = z.string().max(512).regex(/\S/, "must be the name of a model");

/** An error about one value: what it must be, and what it is instead. */
export function invalidValue(param: string, requirement: string, value: unknown): StatorError {
  return new StatorError("invalid_value", `${param} must be ${requirement}, but it is ${describe(value)}.`, { param });
}

export function missing(param: string, requirement: string): StatorError {
  return new StatorError("missing_parameter", `${param} is missing; it must be ${requirement}.`, { param });
}

export function unsupported(param: string, message: string): StatorError {
  return new StatorError("unsupported_parameter", message, { param });
}

/** A short text for a value of any size. */
export function describe(value: unknown): string {
  if (value === undefined) return "missing";
  if (value === null) return "null";
  if (Array.isArray(value)) return value.length === 0 ? "an empty array" : "an array";
  if (typeof value === "object") return "an object";
  if (typeof value === "string")
    return value === "" ? "an empty string" : `the string ${JSON.stringify(shorten(value, 40))}`;
  return String(value);
}

/** `["messages", 0, "content"]` -> `messages[0].content`. */
export function pathText(path: readonly PropertyKey[], at = ""): string {
  let text = at;
  for (const part of path) {
    if (typeof part === "number") text += `[${part}]`;
    else text += text === "" ? shorten(String(part), 100) : `.${shorten(String(part), 100)}`;
  }
  return text;
}

type Issue = z.core.$ZodIssue;

/** For suggestions: the members of nested objects, by path. */
const knownKeys = new Map([["stream_options", ["include_usage", "continuous_usage_stats", "include_obfuscation"]]]);

function issueToError(issue: Issue, root: unknown, at: string): StatorError {
  const param = pathText(issue.path, at);
  const value = valueAt(root, issue.path);
  switch (issue.code) {
    case "unrecognized_keys": {
      const key = issue.keys[0]!;
      return unknownField(pathText([key], param), key, knownKeys.get(param) ?? []);
    }
    case "invalid_type":
      return value === undefined
        ? missing(param, article(issue.expected))
        : invalidValue(param, article(issue.expected), value);
    case "too_small":
      return invalidValue(
        param,
        `${issue.inclusive === false ? "greater than" : "at least"} ${bound(issue, issue.minimum)}`,
        value,
      );
    case "too_big":
      return invalidValue(
        param,
        `${issue.inclusive === false ? "less than" : "at most"} ${bound(issue, issue.maximum)}`,
        value,
      );
    case "invalid_value":
      return value === undefined
        ? missing(param, oneOf(issue.values))
        : invalidValue(param, oneOf(issue.values), value);
    case "invalid_format":
      return new StatorError("invalid_value", `${param} ${issue.message}, but it is ${describe(value)}.`, { param });
    case "custom": {
      const code: ErrorCode = value === undefined ? "missing_parameter" : "invalid_value";
      return new StatorError(code, `${param} ${issue.message}`, { param });
    }
    default:
      return new StatorError("invalid_value", `${param} is not valid: ${issue.message}.`, { param });
  }
}

function bound(issue: Issue & { origin?: string }, limit: number | bigint): string {
  if (issue.origin === "string") return `${limit} characters long`;
  if (issue.origin === "array") return `${limit} items long`;
  return String(limit);
}

function article(expected: string): string {
  switch (expected) {
    case "int":
      return "an integer";
    case "array":
    case "object":
      return `an ${expected}`;
    case "record":
      return "an object";
    case "boolean":
      return "true or false";
    default:
      return `a ${expected}`;
  }
}

function oneOf(values: readonly unknown[]): string {
  const shown = values.map((value) => JSON.stringify(value));
  return shown.length === 1 ? shown[0]! : `one of ${shown.join(", ")}`;
}

function valueAt(root: unknown, path: readonly PropertyKey[]): unknown {
  let value = root;
  for (const part of path) {
    if (typeof value !== "object" || value === null || !Object.hasOwn(value, part)) return undefined;
    value = (value as Record<PropertyKey, unknown>)[part];
  }
  return value;
}

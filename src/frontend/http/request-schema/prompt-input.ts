import { StatorError } from "../../../protocol/errors.ts";
import type { Prompt } from "../../pipeline/client-request.ts";
import { describe, invalidValue, missing } from "./issues.ts";

/** Most prompts of one request. */
export const MAX_PROMPTS = 2048;

const forms = "a string, an array of strings, an array of token ids, or an array of such arrays";

/**
 * `prompt` and `input`: text, texts, token ids, or several lists of token ids. By hand, not by schema: an id list may
 * have a million entries, and an error must name the entry.
 */
export function parsePrompts(value: unknown, param: string, maxPrompts: number): Prompt[] {
  if (value === undefined) throw missing(param, forms);
  if (typeof value === "string") return [{ content: nonEmpty(value, param), param }];
  if (!Array.isArray(value)) throw invalidValue(param, forms, value);
  if (value.length === 0) throw invalidValue(param, "not empty", value);
  if (typeof value[0] === "number") return [{ content: parseTokenIds(value, param), param }];
  if (value.length > maxPrompts) {
    throw new StatorError("invalid_value", `${param} has ${value.length} entries; at most ${maxPrompts} are allowed.`, {
      param,
    });
  }
  const texts = typeof value[0] === "string";
  return value.map((item: unknown, index): Prompt => {
    const at = `${param}[${index}]`;
    if (texts) {
      if (typeof item !== "string") throw invalidValue(at, "a string like the entries before it", item);
      return { content: nonEmpty(item, at), param: at };
    }
    if (!Array.isArray(item)) {
      throw invalidValue(at, index === 0 ? "a string or an array of token ids" : "an array of token ids", item);
    }
    if (item.length === 0) throw invalidValue(at, "not empty", item);
    return { content: parseTokenIds(item, at), param: at };
  });
}

/** Whether the ids are inside the vocabulary is checked when the model is known. */
export function parseTokenIds(items: readonly unknown[], param: string): Uint32Array {
  const tokens = new Uint32Array(items.length);
  for (let i = 0; i < items.length; i++) {
    const id = items[i];
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id > 0xffffffff) {
      throw invalidValue(`${param}[${i}]`, "a token id (an integer from 0)", id);
    }
    tokens[i] = id;
  }
  return tokens;
}

function nonEmpty(text: string, param: string): string {
  if (text === "") throw new StatorError("invalid_value", `${param} must not be ${describe(text)}.`, { param });
  return text;
}

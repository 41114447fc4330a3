import { z } from "zod";
import type { Grammar } from "../../../protocol/generate.ts";
import { check, invalidValue, missing } from "./issues.ts";
import { jsonSlice } from "./json-slice.ts";

const MAX_GRAMMAR_CHARACTERS = 1024 * 1024;

const plain = z.strictObject({ type: z.string() });
const grammarFormat = z.strictObject({ type: z.string(), grammar: z.string().min(1).max(MAX_GRAMMAR_CHARACTERS) });
const schemaFormat = z.strictObject({
  type: z.string(),
  json_schema: z.strictObject({
    name: z.string().regex(/^[A-Za-z0-9_-]{1,64}$/, "must be 1 to 64 letters, digits, _ or -"),
    description: z.string().nullish(),
    schema: z.unknown().optional(),
    strict: z.boolean().nullish(),
  }),
});

/** `response_format` as a constraint of the output; undefined for plain text. */
export function parseResponseFormat(value: unknown, rawBody: () => string): Grammar | undefined {
  const at = "response_format";
  const types = `"text", "json_object", "json_schema" or "grammar"`;
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw invalidValue(at, "an object with a type", value);
  const type = Object.hasOwn(value, "type") ? (value as { type: unknown }).type : undefined;
  switch (type) {
    case "text":
      check(plain, value, at);
      return undefined;
    case "json_object":
      check(plain, value, at);
      return { kind: "json_object" };
    case "json_schema": {
      const { schema } = check(schemaFormat, value, at).json_schema;
      const param = `${at}.json_schema.schema`;
      if (schema === undefined) throw missing(param, "a JSON schema");
      if (schema !== true && (typeof schema !== "object" || schema === null || Array.isArray(schema))) {
        throw invalidValue(param, "a JSON schema (an object, or true)", schema);
      }
      // The client's own text: parsing would move integer-like keys to the front and round large numbers.
      const text = jsonSlice(rawBody(), [at, "json_schema", "schema"]) ?? JSON.stringify(schema);
      return { kind: "json_schema", schema: text };
    }
    case "grammar":
      return { kind: "gbnf", grammar: check(grammarFormat, value, at).grammar };
    case undefined:
      throw missing(`${at}.type`, types);
    default:
      throw invalidValue(`${at}.type`, types, type);
  }
}

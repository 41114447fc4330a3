import { expect, test } from "vitest";
import { jsonSchemaGrammar, UnsupportedSchema } from "./json-schema-grammar.ts";

const grammar = (schema: unknown): string => jsonSchemaGrammar(JSON.stringify(schema));

test("every rule that is used is defined", () => {
  const text = grammar({
    type: "object",
    properties: {
      id: { type: "string", format: "uuid" },
      at: { type: "string", format: "date-time" },
      name: { type: ["string", "null"], maxLength: 5 },
      rest: {},
      tree: { $ref: "#/$defs/tree" },
      point: { type: "array", prefixItems: [{ type: "number" }, { type: "number", minimum: 0 }] },
      map: { type: "object", additionalProperties: { type: "integer" } },
    },
    required: ["id"],
    $defs: { tree: { type: "object", properties: { children: { type: "array", items: { $ref: "#/$defs/tree" } } } } },
  });
  const lines = text.trimEnd().split("\n");
  const defined = lines.map((line) => line.slice(0, line.indexOf(" ")));
  const used = new Set(["root"]);
  for (const line of lines) {
    const body = line
      .slice(line.indexOf("::=") + 3)
      .replaceAll(/"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[^}]*\}/g, " ");
    for (const [name] of body.matchAll(/[a-z][a-z0-9]*/g)) used.add(name);
  }
  expect(used.size).toBeGreaterThan(30);
  expect([...used].filter((name) => !defined.includes(name))).toEqual([]);
});

test("literals are escaped for JSON and for GBNF", () => {
  expect(grammar({ const: 'a"b\\c\n' })).toBe('root ::= "\\"a\\\\\\"b\\\\\\\\c\\\\n\\""\n');
  expect(grammar({ enum: [1, null, { a: [true] }] })).toBe('root ::= "1" | "null" | "{\\"a\\":[true]}"\n');
});

test.each<[string, unknown, string]>([
  ["a type", { type: "string", enum: [1, "a", null, "b"] }, '"\\"a\\"" | "\\"b\\""'],
  ["integers among numbers", { type: "integer", enum: [1, 1.5, 2.0, "3"] }, '"1" | "2"'],
  ["numbers", { type: "number", enum: [1, 1.5, true] }, '"1" | "1.5"'],
  ["several types", { type: ["boolean", "null"], enum: [0, false, "", null] }, '"false" | "null"'],
  ["objects, not lists", { type: "object", enum: [[], {}, null] }, '"{}"'],
  ["lists, not objects", { type: "array", enum: [[], {}, null] }, '"[]"'],
  ["a constant of its type", { type: "string", const: "a" }, '"\\"a\\""'],
])("members of %s are left of an enum", (_name, schema, body) => {
  expect(grammar(schema)).toBe(`root ::= ${body}\n`);
});

test.each<[string, unknown, string]>([
  ["an enum without its type", { properties: { a: { type: "integer", enum: ["1", 1.5] } } }, "#/properties/a/enum"],
  ["a constant of another type", { type: "string", const: 1 }, "#/const"],
  ["an unknown type beside an enum", { type: "text", enum: ["a"] }, "#/type"],
  ["an empty type beside an enum", { type: [], enum: ["a"] }, "#/type"],
  ["pattern", { type: "string", pattern: "a" }, "#/pattern"],
  ["a bound", { type: "integer", minimum: 3 }, "#/minimum"],
  ["a keyword of another type", { type: "string", items: {} }, "#/items"],
  ["a sibling of $ref", { $ref: "#/$defs/a", minLength: 2, $defs: { a: { type: "string" } } }, "#/minLength"],
  ["a sibling of anyOf", { anyOf: [{ type: "string" }], type: "string" }, "#/type"],
  ["nested", { type: "object", properties: { a: { not: {} } } }, "#/properties/a/not"],
  ["in a definition", { $defs: { a: { if: {} } } }, "#/$defs/a/if"],
  ["required but undefined", { type: "object", properties: {}, required: ["a"] }, "#/required"],
  ["crossed counts", { type: "array", minItems: 3, maxItems: 2 }, "#/minItems"],
  ["a false schema", false, "#"],
])("refuses %s by its place", (_name, schema, place) => {
  expect(() => grammar(schema)).toThrow(UnsupportedSchema);
  expect(() => grammar(schema)).toThrow(place);
});

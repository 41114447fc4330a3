import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { checkGbnf } from "./gbnf-limits.ts";
import { jsonSchemaGrammar } from "./json-schema-grammar.ts";

const packageFolder = join(dirname(createRequire(import.meta.url).resolve("node-llama-cpp")), "..");
const examples = join(packageFolder, "llama", "grammars");

describe("ordinary grammars pass", () => {
  test.each(readdirSync(examples).filter((name) => name.endsWith(".gbnf")))("llama.cpp's own %s", (name) => {
    expect(() => checkGbnf(readFileSync(join(examples, name), "utf8"))).not.toThrow();
  });

  test.each<[string, unknown]>([
    ["any JSON", {}],
    ["an enum of 800 words that begin alike", { enum: Array.from({ length: 800 }, (_, i) => `item_${i}`) }],
    [
      "40 optional properties",
      {
        type: "object",
        properties: Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`p${i}`, { type: "number" }])),
      },
    ],
    ["long strings and lists", { type: "array", maxItems: 500, items: { type: "string", maxLength: 1000 } }],
    [
      "a tree",
      {
        $ref: "#/$defs/t",
        $defs: { t: { type: "object", properties: { kids: { type: "array", items: { $ref: "#/$defs/t" } } } } },
      },
    ],
  ])("a JSON schema: %s", (_name, schema) => {
    expect(() => checkGbnf(jsonSchemaGrammar(JSON.stringify(schema)))).not.toThrow();
  });
});

test("literals, classes, escapes and comments do not confuse it", () => {
  expect(() =>
    checkGbnf('# root ( {\nroot ::= "(" [)"\\]{] "\\"" | "root ::= (" x-1 # ) }\nx-1 ::= [^\\x00-\\x1F\\u00e9]{2} .'),
  ).not.toThrow();
});

test("any text gives an answer in reasonable time", () => {
  const parts = [
    '"a"',
    "[a-z]",
    "[^b]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{0,3}",
    "{1,}",
    "r1",
    "r2",
    "root",
    "\nr1 ::= ",
    "\nr2 ::= ",
    '""',
    ".",
    '"',
    "[",
    "{",
    "\\",
    "é",
  ];
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...parts), { maxLength: 40 }), (chosen) => {
      const began = performance.now();
      try {
        checkGbnf(`root ::= ${chosen.join(" ")}`);
      } catch (error) {
        expect(error).toBeInstanceOf(Error);
        expect(error).not.toBeInstanceOf(TypeError);
      }
      expect(performance.now() - began).toBeLessThan(2000);
    }),
    { numRuns: 500 },
  );
});

const many = (part: string, count: number): string => `root ::= ${part.repeat(count)}`;
const wide = Array.from({ length: 900 }, (_, i) => `[${String.fromCharCode(97 + (i % 26))}-z]*`).join("|");
const circle = (beginning: (i: number) => string): string =>
  `root ::= r0\n${Array.from({ length: 3900 }, (_, i) => `r${i} ::= ${beginning(i)} r${(i + 1) % 3900}`).join("\n")}`;

test.each<[string, string]>([
  ["dots", many(".", 200_000)],
  ["dots, as many as there may be", many(".", 19_990)],
  ["bars", many("|", 200_000)],
  ["empty texts", many('"" ', 19_990)],
  ["empty rules", `e ::= ""\n${many("e ", 19_990)}`],
  ["classes", many("[a-z]", 19_990)],
  ["classes, never closed", many("[", 200_000)],
  [
    "a class of many characters",
    `root ::= [^${String.fromCharCode(...Array.from({ length: 60_000 }, (_, i) => 0x100 + 2 * (i % 25_000)))}]*`,
  ],
  ["loops", many('"a"* "b" ', 9900)],
  ["groups in a row", many('("a")', 3900)],
  ["groups in each other", many("(", 200_000)],
  ["repetitions of repetitions", `root ::= "a"${"?".repeat(3990)}`],
  ["a long text", `root ::= "${"a".repeat(250_000)}"`],
  ["a long text of escapes", `root ::= "${"\\n".repeat(125_000)}"`],
  ["a long text, repeated", `root ::= "${"a".repeat(250_000)}"{2000}`],
  ["many loops side by side", `root ::= (${wide})`],
  ["a large circle of rules", circle((i) => `"a" r${(i * 7 + 3) % 3900} | "b"`)],
  ["a large circle of ambiguous rules", circle((i) => `[a-z] r${(i * 7 + 3) % 3900} | [a-z]`)],
])("judges in little time: %s", (_name, grammar) => {
  let best = Number.POSITIVE_INFINITY;
  // The best of three: this is about the grammar, not about what else the machine does.
  for (let i = 0; i < 3; i++) {
    const began = performance.now();
    try {
      checkGbnf(grammar);
    } catch (error) {
      expect(error).toBeInstanceOf(Error);
    }
    best = Math.min(best, performance.now() - began);
  }
  expect(best).toBeLessThan(400);
});

test("refuses what llama.cpp would write out to gigabytes", () => {
  expect(() => checkGbnf(`root ::= "${"a".repeat(1000)}"{2000}`)).toThrow("repetitions counted");
  expect(() => checkGbnf(many(".", 20_001))).toThrow("more than 20000 parts");
});

test.each([
  ["at once", "root ::= [a-z] root{0,3}"],
  ["after a class, repeated", "root ::= [a-z]{60} amb\namb ::= [a-z] amb{0,3}"],
  ["after a long text", `root ::= "${"x".repeat(100)}" amb\namb ::= [a-z] amb{0,3}`],
  ["after many classes", `root ::= ${"[a-z]".repeat(100)} amb\namb ::= [a-z] amb{0,3}`],
  [
    "in a rule behind another",
    `root ::= a\na ::= "${"x".repeat(100)}" (b | "y")\nb ::= "${"x".repeat(100)}" amb\namb ::= [a-z] (amb amb?)?`,
  ],
])("refuses ambiguity that comes %s", (_name, grammar) => {
  expect(() => checkGbnf(grammar)).toThrow("too ambiguous");
});

test("twenty rules that lead into each other are no ambiguity", () => {
  const member = (i: number): [string, unknown] => [
    `t${i}`,
    {
      type: "object",
      properties: {
        a: { type: "string" },
        kid: { $ref: `#/$defs/t${(i + 1) % 20}` },
        kids: { type: "array", items: { $ref: `#/$defs/t${(i * 3 + 2) % 20}` } },
      },
    },
  ];
  const schema = { $ref: "#/$defs/t0", $defs: Object.fromEntries(Array.from({ length: 20 }, (_, i) => member(i))) };
  expect(() => checkGbnf(jsonSchemaGrammar(JSON.stringify(schema)))).not.toThrow();
});

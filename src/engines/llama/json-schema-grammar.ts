/** A schema that cannot be honoured in full. The message names the place, as a JSON pointer. */
export class UnsupportedSchema extends Error {
  override readonly name = "UnsupportedSchema";
}

const maxBytes = 128 * 1024;
const maxDepth = 64;

/** Keywords that only describe. */
const annotations = new Set(
  "title description default examples $schema $id $comment deprecated readOnly writeOnly".split(" "),
);

const keywordsOfType: Readonly<Record<string, readonly string[]>> = {
  object: ["properties", "required", "additionalProperties", "minProperties", "maxProperties"],
  array: ["items", "prefixItems", "minItems", "maxItems"],
  string: ["minLength", "maxLength", "format"],
  number: ["minimum", "maximum"],
  integer: ["minimum", "maximum", "exclusiveMinimum"],
  boolean: [],
  null: [],
};

/** Rules that others refer to; only those in use get into a grammar. Every whitespace is bounded: no endless blanks. */
const sharedRules: Readonly<Record<string, string>> = {
  ws: '" "? | "\\n" [ \\t]{0,20}',
  char: '[^"\\\\\\x7F\\x00-\\x1F] | "\\\\" ["\\\\/bfnrt]',
  string: '"\\"" (char | "\\\\u" [0-9a-fA-F]{4})* "\\""',
  integer: '"-"? natural',
  natural: '"0" | positive',
  positive: "[1-9] [0-9]{0,14}",
  number: '"-"? unsigned',
  unsigned: 'natural ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
  boolean: '"true" | "false"',
  null: '"null"',
  // Every day up to the 28th exists in every month.
  date: '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])',
  time: '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
  uuid: 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
  hex: "[0-9a-f]",
  any: "object | array | string | number | boolean | null",
  object: '"{" ws (pair ("," ws pair)*)? ws "}"',
  pair: 'string ":" ws any',
  array: '"[" ws (any ("," ws any)*)? ws "]"',
};

type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json };
type JsonObject = { readonly [key: string]: Json };

/**
 * A GBNF grammar all of whose texts are JSON that the schema accepts (not always all such texts). What would not hold
 * is refused with {@link UnsupportedSchema}; nothing is ignored.
 *
 * Properties come in the order of the schema, except that names which look like integers come first, as in every
 * JavaScript object. `anyOf` and `oneOf` are both alternatives.
 */
export function jsonSchemaGrammar(text: string): string {
  if (Buffer.byteLength(text) > maxBytes) throw new UnsupportedSchema(`it is longer than ${maxBytes} bytes`);
  let schema: Json;
  try {
    schema = JSON.parse(text) as Json;
  } catch {
    throw new UnsupportedSchema("it is not valid JSON");
  }
  return new GrammarWriter(schema).write();
}

class GrammarWriter {
  private readonly schema: Json;
  private readonly rules = new Map<string, string>();
  private readonly definitions = new Map<string, { readonly schema: Json; readonly rule: string }>();

  constructor(schema: Json) {
    this.schema = schema;
    for (const group of isObject(schema) ? ["$defs", "definitions"] : []) {
      const members = (schema as JsonObject)[group];
      if (members === undefined) continue;
      if (!isObject(members)) throw new UnsupportedSchema(`#/${group} is not an object`);
      for (const [name, member] of Object.entries(members)) {
        this.definitions.set(`#/${group}/${name}`, { schema: member, rule: `def${this.definitions.size}` });
      }
    }
  }

  write(): string {
    this.rules.set("root", this.alternatives(this.schema, "#", 0));
    for (const [path, { schema, rule }] of this.definitions) this.rules.set(rule, this.alternatives(schema, path, 1));
    return [...this.rules].map(([name, body]) => `${name} ::= ${body}\n`).join("");
  }

  private use(name: string): string {
    const body = sharedRules[name];
    if (body === undefined) throw new Error(`No rule ${name}.`);
    if (!this.rules.has(name)) {
      this.rules.set(name, body);
      const plain = body.replaceAll(/"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]/g, " ");
      for (const [part] of plain.matchAll(/[a-z]+/g)) this.use(part);
    }
    return name;
  }

  private add(body: string): string {
    const name = `r${this.rules.size}`;
    this.rules.set(name, body);
    return name;
  }

  /** A body for the schema; may contain `|` at its top level. */
  private alternatives(schema: Json, path: string, depth: number): string {
    if (depth > maxDepth) throw new UnsupportedSchema(`it is nested more than ${maxDepth} deep`);
    if (schema === true) return this.use("any");
    if (!isObject(schema)) throw new UnsupportedSchema(`${path} is not a schema`);
    const known = new Set([...annotations, ...(depth === 0 ? ["$defs", "definitions"] : [])]);
    const body = this.body(schema, path, depth, known);
    for (const keyword of Object.keys(schema)) {
      if (!known.has(keyword)) throw new UnsupportedSchema(`${path}/${keyword} is not supported here`);
    }
    return body;
  }

  private body(schema: JsonObject, path: string, depth: number, known: Set<string>): string {
    if (schema.$ref !== undefined) {
      known.add("$ref");
      const definition = this.definitions.get(String(schema.$ref));
      if (schema.$ref === "#") return "root";
      if (definition === undefined) throw new UnsupportedSchema(`${path}/$ref does not point to a definition`);
      return definition.rule;
    }
    const choice = ["anyOf", "oneOf", "allOf"].find((keyword) => schema[keyword] !== undefined);
    if (choice !== undefined) {
      known.add(choice);
      const members = nonEmptyList(schema[choice], `${path}/${choice}`);
      if (choice === "allOf" && members.length > 1) throw new UnsupportedSchema(`${path}/allOf has several members`);
      return members.map((member, i) => this.alternatives(member, `${path}/${choice}/${i}`, depth + 1)).join(" | ");
    }
    if (schema.const !== undefined) {
      known.add("const").add("type");
      return ofType([schema.const], schema.type, `${path}/const`, path).map(literal).join(" | ");
    }
    if (schema.enum !== undefined) {
      known.add("enum").add("type");
      const members = nonEmptyList(schema.enum, `${path}/enum`);
      return ofType(members, schema.type, `${path}/enum`, path).map(literal).join(" | ");
    }
    known.add("type");
    const type = schema.type ?? impliedType(schema);
    if (type === undefined) return this.use("any");
    return typesOf(type, path)
      .map((name) => {
        for (const keyword of keywordsOfType[name] ?? []) known.add(keyword);
        return this.typed(name, schema, path, depth);
      })
      .join(" | ");
  }

  private typed(type: string, schema: JsonObject, path: string, depth: number): string {
    switch (type) {
      case "object":
        return this.object(schema, path, depth);
      case "array":
        return this.array(schema, path, depth);
      case "string":
        return this.string(schema, path);
      case "integer":
      case "number":
        return this.number(type, schema, path);
      default:
        return this.use(type);
    }
  }

  private number(type: "integer" | "number", schema: JsonObject, path: string): string {
    const isInteger = type === "integer";
    const { minimum, maximum, exclusiveMinimum } = schema;
    // Libraries write the range of exact integers; the rules keep to fifteen digits anyway.
    if (maximum !== undefined && !(isInteger && maximum === Number.MAX_SAFE_INTEGER)) {
      throw new UnsupportedSchema(`${path}/maximum is not supported`);
    }
    if (exclusiveMinimum !== undefined) {
      if (exclusiveMinimum !== 0 || minimum !== undefined) {
        throw new UnsupportedSchema(`${path}/exclusiveMinimum is supported for integers above 0 only`);
      }
      return this.use("positive");
    }
    if (minimum === 0) return this.use(isInteger ? "natural" : "unsigned");
    if (minimum === 1 && isInteger) return this.use("positive");
    if (minimum !== undefined && !(isInteger && minimum === Number.MIN_SAFE_INTEGER)) {
      throw new UnsupportedSchema(`${path}/minimum is supported for 0, and 1 for integers, only`);
    }
    return this.use(type);
  }

  private string(schema: JsonObject, path: string): string {
    const [least, most] = counts(schema, path, "minLength", "maxLength");
    if (schema.format !== undefined) {
      if (least !== 0 || most !== undefined) throw new UnsupportedSchema(`${path} has a format and a length`);
      if (schema.format === "date-time") return `"\\"" ${this.use("date")} "T" ${this.use("time")} "\\""`;
      if (schema.format === "date" || schema.format === "time" || schema.format === "uuid") {
        return `"\\"" ${this.use(schema.format)} "\\""`;
      }
      throw new UnsupportedSchema(`${path}/format is not supported`);
    }
    if (least === 0 && most === undefined) return this.use("string");
    // Without \u escapes, two of which may be one character.
    return `"\\"" ${this.use("char")}{${least},${most ?? ""}} "\\""`;
  }

  private array(schema: JsonObject, path: string, depth: number): string {
    const [least, most] = counts(schema, path, "minItems", "maxItems");
    const ws = this.use("ws");
    const prefix = schema.prefixItems === undefined ? [] : nonEmptyList(schema.prefixItems, `${path}/prefixItems`);
    if (prefix.length > 0 && ((most ?? prefix.length) < prefix.length || least > prefix.length)) {
      throw new UnsupportedSchema(`${path} has prefixItems and another number of items`);
    }
    if (prefix.length > 0) {
      const members = prefix.map((member, i) =>
        this.add(this.alternatives(member, `${path}/prefixItems/${i}`, depth + 1)),
      );
      return `"[" ${ws} ${members.join(` "," ${ws} `)} ${ws} "]"`;
    }
    if (schema.items === false || most === 0) {
      if (least > 0) throw new UnsupportedSchema(`${path} allows no items and wants some`);
      return `"[" ${ws} "]"`;
    }
    const item = this.add(this.alternatives(schema.items ?? true, `${path}/items`, depth + 1));
    return `"[" ${ws} ${this.list(item, least, most)} ${ws} "]"`;
  }

  private object(schema: JsonObject, path: string, depth: number): string {
    const ws = this.use("ws");
    const properties = schema.properties ?? {};
    const required = schema.required ?? [];
    if (!isObject(properties)) throw new UnsupportedSchema(`${path}/properties is not an object`);
    if (!Array.isArray(required)) throw new UnsupportedSchema(`${path}/required is not a list`);
    const names = Object.keys(properties);
    for (const name of required as readonly Json[]) {
      if (!names.includes(String(name))) throw new UnsupportedSchema(`${path}/required names an undefined property`);
    }
    const [least, most] = counts(schema, path, "minProperties", "maxProperties");
    if (names.length === 0) {
      const extra = schema.additionalProperties ?? true;
      if (extra === false || most === 0) {
        if (least > 0) throw new UnsupportedSchema(`${path} allows no properties and wants some`);
        return `"{" ${ws} "}"`;
      }
      const value = this.add(this.alternatives(extra, `${path}/additionalProperties`, depth + 1));
      const pair = this.add(`${this.use("string")} ":" ${ws} ${value}`);
      // Two pairs may have the same name, and then count once.
      if (least > 1) throw new UnsupportedSchema(`${path}/minProperties is supported up to 1 here`);
      return `"{" ${ws} ${this.list(pair, least, most)} ${ws} "}"`;
    }
    // Properties beyond the named ones are allowed to be absent, so they always are.
    if (isObject(schema.additionalProperties ?? true)) {
      this.alternatives(schema.additionalProperties ?? true, `${path}/additionalProperties`, depth + 1);
    }
    if (least > required.length || (most ?? names.length) < names.length) {
      throw new UnsupportedSchema(`${path} has properties and another number of properties`);
    }
    // From the last to the first: what may follow, after a comma or as the first one.
    let next = { first: '""', later: '""' };
    for (const name of names.toReversed()) {
      const value = this.add(this.alternatives(properties[name]!, `${path}/properties/${name}`, depth + 1));
      const pair = `${literal(name)} ":" ${ws} ${value}`;
      const isRequired = (required as readonly Json[]).includes(name);
      const [first, later] = [`${pair} ${next.later}`, `"," ${ws} ${pair} ${next.later}`];
      next = {
        first: this.add(isRequired ? first : `${first} | ${next.first}`),
        later: this.add(isRequired ? later : `${later} | ${next.later}`),
      };
    }
    return `"{" ${ws} ${next.first} ${ws} "}"`;
  }

  private list(item: string, least: number, most: number | undefined): string {
    const more = `("," ${this.use("ws")} ${item}){${Math.max(0, least - 1)},${most === undefined ? "" : most - 1}}`;
    return least === 0 ? `(${item} ${more})?` : `${item} ${more}`;
  }
}

function typesOf(type: Json, path: string): readonly string[] {
  return (Array.isArray(type) ? nonEmptyList(type, `${path}/type`) : [type]).map((name: Json) => {
    if (typeof name === "string" && Object.hasOwn(keywordsOfType, name)) return name;
    throw new UnsupportedSchema(`${path}/type is unknown`);
  });
}

/** Those of the values that also have the type beside them; `place` is where they stand. */
function ofType(values: readonly Json[], type: Json | undefined, place: string, path: string): readonly Json[] {
  if (type === undefined) return values;
  const types = typesOf(type, path);
  const fitting = values.filter((value) => types.some((name) => isOfType(value, name)));
  if (fitting.length === 0) throw new UnsupportedSchema(`${place} has nothing of the type beside it`);
  return fitting;
}

function isOfType(value: Json, type: string): boolean {
  switch (type) {
    case "null":
      return value === null;
    case "array":
      return Array.isArray(value);
    case "object":
      return isObject(value);
    case "integer":
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}

function impliedType(schema: JsonObject): string | undefined {
  return Object.keys(keywordsOfType).find((type) =>
    keywordsOfType[type]!.some((keyword) => schema[keyword] !== undefined),
  );
}

function counts(schema: JsonObject, path: string, least: string, most: string): [number, number | undefined] {
  const [low, high] = [least, most].map((keyword) => {
    const value = schema[keyword];
    if (value === undefined) return undefined;
    if (typeof value !== "number" || !Number.isInteger(value) || value < 0) {
      throw new UnsupportedSchema(`${path}/${keyword} is not a count`);
    }
    return value;
  });
  if (high !== undefined && (low ?? 0) > high) throw new UnsupportedSchema(`${path}/${least} exceeds ${most}`);
  return [low ?? 0, high];
}

function literal(value: Json): string {
  return `"${JSON.stringify(value).replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\x7f", "\\x7F")}"`;
}

function nonEmptyList(value: Json | undefined, path: string): readonly Json[] {
  if (!Array.isArray(value) || value.length === 0) throw new UnsupportedSchema(`${path} is not a list with members`);
  return value as readonly Json[];
}

function isObject(value: Json): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

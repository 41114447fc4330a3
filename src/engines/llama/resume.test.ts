import { afterAll, beforeAll, expect, test } from "vitest";
import { TokenFlag, tokenBytes } from "../../protocol/index.ts";
import { createLlamaEngine, type LlamaEngine } from "./index.ts";
import { answer, builtinModel, request, type ShortRequest } from "./testing.contract.ts";

const prompt = [1, 4, 300, 310, 320, 6, 5];
const schema = JSON.stringify({
  type: "object",
  properties: { color: { enum: ["red", "green", "blue"] }, big: { type: "boolean" }, n: { type: "integer" } },
  required: ["color", "big", "n"],
});

let engine: LlamaEngine;
beforeAll(async () => {
  engine = await createLlamaEngine(
    { modelPath: builtinModel, name: "builtin", flashAttention: false, contextLength: 512 },
    AbortSignal.timeout(30_000),
  );
});
afterAll(() => engine?.close());

const textOf = (tokens: readonly number[]): string => {
  const table = engine.tokenizing.tokenTable();
  return Buffer.concat(tokens.map((id) => tokenBytes(table, id))).toString("utf8");
};

test("tokens that the sampler would not choose itself are taken up, and the grammar holds to the end", async () => {
  const constrained = (seed: number): ShortRequest => ({
    sampling: { temperature: 1.5, seed },
    stop: { maxTokens: 120 },
    grammar: { kind: "json_schema", schema },
  });
  let complete = 0;
  for (let seed = 1; seed <= 8; seed++) {
    const first = await answer(engine, request(prompt, constrained(seed)));
    const generated = Uint32Array.from(first.tokens.slice(0, Math.ceil(first.tokens.length * 0.6)));
    const rest = await answer(engine, request(prompt, { ...constrained(seed + 100), generated }));
    if (rest.finish.reason !== "stop") continue; // an integer may go on and on
    const value = JSON.parse(textOf([...generated, ...rest.tokens])) as Record<string, unknown>;
    expect(["red", "green", "blue"]).toContain(value.color);
    expect(typeof value.big).toBe("boolean");
    expect(Number.isInteger(value.n)).toBe(true);
    complete++;
  }
  expect(complete).toBeGreaterThan(2);
});

test("a token that the grammar refuses is an error, and the engine goes on", async () => {
  const free = await answer(engine, request(prompt, { stop: { maxTokens: 3 } }));
  const grammar = { kind: "gbnf", grammar: 'root ::= "[" [0-9]+ "]"' } as const;
  const generated = Uint32Array.from(free.tokens);
  await expect(answer(engine, request(prompt, { grammar, generated }))).rejects.toMatchObject({ code: "engine_error" });
  expect((await answer(engine, request(prompt, { stop: { maxTokens: 3 } }))).tokens).toEqual(free.tokens);
  expect(engine.loads().running).toBe(0);
});

test("a token that ends the sequence is refused, unless such tokens are ordinary output", async () => {
  const { flags } = engine.tokenizing.tokenTable();
  const end = flags.findIndex((flag) => (flag & TokenFlag.endOfGeneration) !== 0);
  const generated = Uint32Array.of(300, end);
  const ignoring = await answer(engine, request(prompt, { generated, stop: { maxTokens: 6, ignoreEos: true } }));
  expect(ignoring.tokens).toHaveLength(4);
  await expect(answer(engine, request(prompt, { generated }))).rejects.toMatchObject({
    code: "invalid_value",
    param: "generated",
  });
});

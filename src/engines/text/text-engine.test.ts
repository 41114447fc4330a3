import { expect, test } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest } from "../../protocol/generate.ts";
import { engineContract } from "../conformance/engine.contract.ts";
import { echoPrompt } from "../echo/echo.contract.ts";
import { TextEngine } from "./text-engine.ts";

/** Says the alphabet again and again, without stop tokens before minTokens; gives way to others now and then. */
async function* alphabet(_prompt: string, { stop }: GenerateRequest, signal: AbortSignal): AsyncGenerator<string> {
  for (let i = 0; !signal.aborted; i++) {
    const letter = String.fromCharCode(97 + (i % 26));
    const isStop = stop.stopTokenIds.includes(letter.charCodeAt(0));
    yield isStop && i < stop.minTokens ? "-" : letter;
    if (i % 16 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
}

const parameters = ["temperature", "topP", "topK", "minP", "seed", "minTokens", "ignoreEos"];

engineContract(
  "text",
  async () => new TextEngine({ name: "alphabet", generate: alphabet, parameters, contextLength: 4096, maxRunning: 8 }),
  {
    prompt: (length, variant = 0) => echoPrompt(length, variant).map((token) => token % 128),
    refused: [
      { what: "JSON mode", change: { grammar: { kind: "json_object" } }, param: "response_format" },
      { what: "logit bias", change: { sampling: { logitBias: [[1, 5]] } }, param: "logit_bias" },
      { what: "penalties", change: { sampling: { presencePenalty: 1 } }, param: "presence_penalty" },
      { what: "logprobs", change: { topLogprobs: 0 }, param: "logprobs" },
    ],
  },
);

function request(text: string, maxTokens = 100): GenerateRequest {
  return {
    requestId: "r",
    model: "m",
    tokens: Uint32Array.from(Buffer.from(text)),
    sampling: {
      temperature: 1,
      topP: 1,
      topK: 0,
      minP: 0,
      presencePenalty: 0,
      frequencyPenalty: 0,
      repetitionPenalty: 1,
    },
    stop: { maxTokens, minTokens: 0, stopTokenIds: [], ignoreEos: false },
    timeoutMs: 10_000,
  };
}

async function answer(engine: TextEngine, asked: GenerateRequest): Promise<{ text: string; reason: string }> {
  const bytes: number[] = [];
  let reason = "none";
  for await (const { tokens, finish } of engine.generate(asked, AbortSignal.timeout(10_000))) {
    bytes.push(...tokens);
    if (finish) reason = `${finish.reason} ${finish.usage.promptTokens}/${finish.usage.completionTokens}`;
  }
  return { text: Buffer.from(bytes).toString(), reason };
}

test("text in, text out: complete, cut at maxTokens, with the function's own error", async () => {
  const engine = new TextEngine({
    name: "upper",
    async *generate(prompt) {
      if (prompt === "no") throw new StatorError("overloaded", "Not now.");
      yield prompt.toUpperCase();
      yield "!";
    },
  });
  expect(await answer(engine, request("grüße"))).toEqual({ text: "GRÜSSE!", reason: "stop 7/8" });
  expect(await answer(engine, request("hello", 3))).toEqual({ text: "HEL", reason: "length 5/3" });
  expect(await answer(engine, request("hello", 6))).toEqual({ text: "HELLO!", reason: "length 5/6" });
  await expect(answer(engine, request("no"))).rejects.toMatchObject({ code: "overloaded" });
  expect(engine.loads().running).toBe(0);
});

test("pieces may be of any size, half a character too", async () => {
  const text = "a😀b👩‍👩‍👧é\ud83d";
  const engine = new TextEngine({
    name: "units",
    async *generate() {
      for (let i = 0; i < text.length; i++) yield text[i]!;
    },
  });
  const whole = Buffer.from(text).toString();
  expect(await answer(engine, request("x"))).toEqual({ text: whole, reason: `stop 1/${Buffer.byteLength(whole)}` });
});

test("a function that does not react to the signal does not hold the request", async () => {
  const engine = new TextEngine({
    name: "deaf",
    async *generate() {
      yield "a";
      await new Promise(() => {});
    },
  });
  const controller = new AbortController();
  const deltas = engine.generate(request("x"), controller.signal);
  await deltas.next();
  const last = deltas.next();
  controller.abort();
  expect((await last).value).toMatchObject({ finish: { reason: "abort" } });
  await deltas.return(undefined);
  expect(engine.loads().running).toBe(0);
});

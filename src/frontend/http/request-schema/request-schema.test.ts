import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { StatorError } from "../../../protocol/errors.ts";
import { parseChatRequest } from "./chat-request.ts";
import { parseCompletionRequest } from "./completion-request.ts";
import { parseEmbeddingRequest } from "./embedding-request.ts";
import { jsonSlice } from "./json-slice.ts";

const limits = { maxMessages: 4 };
const message = { role: "user", content: "hi" };

const chat = (more: unknown) => {
  const body = { model: "m", messages: [message], ...(more as object) };
  return parseChatRequest(body, () => JSON.stringify(body), limits);
};
const completion = (more: unknown) => {
  const body = { model: "m", prompt: "hi", ...(more as object) };
  return parseCompletionRequest(body, () => JSON.stringify(body));
};
const embedding = (more: unknown) => parseEmbeddingRequest({ model: "m", input: "hi", ...(more as object) });

function problemOf(parse: () => unknown): { code: string; param: string | undefined; message: string } {
  try {
    parse();
  } catch (thrown) {
    if (thrown instanceof StatorError) return { code: thrown.code, param: thrown.param, message: thrown.message };
    throw thrown;
  }
  return { code: "ok", param: undefined, message: "" };
}

const invalid = "invalid_value";
const missing = "missing_parameter";
const unknown = "unknown_parameter";
const unsupported = "unsupported_parameter";

describe("chat requests that are refused", () => {
  const cases: [unknown, string, string][] = [
    [{ model: undefined }, missing, "model"],
    [{ model: null }, missing, "model"],
    [{ model: 5 }, invalid, "model"],
    [{ model: "" }, invalid, "model"],
    [{ model: " \t" }, invalid, "model"],
    [{ messages: undefined }, missing, "messages"],
    [{ messages: "hi" }, invalid, "messages"],
    [{ messages: [] }, invalid, "messages"],
    [{ messages: Array(5).fill(message) }, invalid, "messages"],
    [{ messages: [null] }, invalid, "messages[0]"],
    [{ messages: [message, { role: "user" }] }, missing, "messages[1].content"],
    [{ messages: [{ role: "user", content: null }] }, missing, "messages[0].content"],
    [{ messages: [{ role: "user", content: 7 }] }, invalid, "messages[0].content"],
    [{ messages: [{ role: "user", content: [] }] }, invalid, "messages[0].content"],
    [{ messages: [{ content: "x" }] }, missing, "messages[0].role"],
    [{ messages: [{ role: "king", content: "x" }] }, invalid, "messages[0].role"],
    [{ messages: [{ role: "tool", content: "x" }] }, unsupported, "messages[0].role"],
    [{ messages: [{ ...message, tool_calls: [{}] }] }, unsupported, "messages[0].tool_calls"],
    [{ messages: [{ ...message, colour: 1 }] }, unknown, "messages[0].colour"],
    [{ messages: [{ ...message, name: 1 }] }, invalid, "messages[0].name"],
    [{ messages: [{ role: "user", content: [{ type: "text" }] }] }, missing, "messages[0].content[0].text"],
    [{ messages: [{ role: "user", content: ["x"] }] }, invalid, "messages[0].content[0]"],
    [{ messages: [{ role: "user", content: [{ type: "image_url" }] }] }, unsupported, "messages[0].content[0].type"],
    [{ temperature: 2.1 }, invalid, "temperature"],
    [{ temperature: -1 }, invalid, "temperature"],
    [{ temperature: "hot" }, invalid, "temperature"],
    [{ top_p: 0 }, invalid, "top_p"],
    [{ top_p: 1.5 }, invalid, "top_p"],
    [{ top_k: -2 }, invalid, "top_k"],
    [{ top_k: 1.5 }, invalid, "top_k"],
    [{ min_p: 2 }, invalid, "min_p"],
    [{ presence_penalty: 3 }, invalid, "presence_penalty"],
    [{ frequency_penalty: -3 }, invalid, "frequency_penalty"],
    [{ repetition_penalty: 0 }, invalid, "repetition_penalty"],
    [{ n: 0 }, invalid, "n"],
    [{ n: 129 }, invalid, "n"],
    [{ n: 1.5 }, invalid, "n"],
    [{ seed: 1.5 }, invalid, "seed"],
    [{ seed: 2 ** 60 }, invalid, "seed"],
    [{ max_tokens: 0 }, invalid, "max_tokens"],
    [{ max_tokens: "5" }, invalid, "max_tokens"],
    [{ max_completion_tokens: -1 }, invalid, "max_completion_tokens"],
    [{ max_tokens: 5, max_completion_tokens: 6 }, invalid, "max_completion_tokens"],
    [{ max_tokens: 5, min_tokens: 6 }, invalid, "min_tokens"],
    [{ stop: "" }, invalid, "stop"],
    [{ stop: ["a", "b", ""] }, invalid, "stop[2]"],
    [{ stop: ["a", 5] }, invalid, "stop[1]"],
    [{ stop: Array(33).fill("x") }, invalid, "stop"],
    [{ stop: 5 }, invalid, "stop"],
    [{ stop_token_ids: [1, -1] }, invalid, "stop_token_ids[1]"],
    [{ logit_bias: [] }, invalid, "logit_bias"],
    [{ logit_bias: { abc: 1 } }, invalid, "logit_bias.abc"],
    [{ logit_bias: { 5: 101 } }, invalid, "logit_bias.5"],
    [{ logit_bias: { 5: "x" } }, invalid, "logit_bias.5"],
    [{ logprobs: 3 }, invalid, "logprobs"],
    [{ top_logprobs: 3 }, invalid, "top_logprobs"],
    [{ logprobs: true, top_logprobs: 21 }, invalid, "top_logprobs"],
    [{ stream: "yes" }, invalid, "stream"],
    [{ stream_options: {} }, invalid, "stream_options"],
    [{ stream: true, stream_options: { include_usage: 1 } }, invalid, "stream_options.include_usage"],
    [{ stream: true, stream_options: { colour: 1 } }, unknown, "stream_options.colour"],
    [{ response_format: "json" }, invalid, "response_format"],
    [{ response_format: {} }, missing, "response_format.type"],
    [{ response_format: { type: "xml" } }, invalid, "response_format.type"],
    [{ response_format: { type: "json_schema" } }, missing, "response_format.json_schema"],
    [
      { response_format: { type: "json_schema", json_schema: { name: "n" } } },
      missing,
      "response_format.json_schema.schema",
    ],
    [
      { response_format: { type: "json_schema", json_schema: { schema: {} } } },
      missing,
      "response_format.json_schema.name",
    ],
    [
      { response_format: { type: "json_schema", json_schema: { name: "n", schema: false } } },
      invalid,
      "response_format.json_schema.schema",
    ],
    [
      { response_format: { type: "json_schema", json_schema: { name: "n n", schema: {} } } },
      invalid,
      "response_format.json_schema.name",
    ],
    [{ response_format: { type: "grammar" } }, missing, "response_format.grammar"],
    [{ response_format: { type: "text", more: 1 } }, unknown, "response_format.more"],
    [{ tools: [{ type: "function" }] }, unsupported, "tools"],
    [{ tool_choice: "auto" }, unsupported, "tool_choice"],
    [{ guided_json: {} }, unsupported, "guided_json"],
    [{ reasoning_effort: "low" }, unsupported, "reasoning_effort"],
    [{ colour: "red" }, unknown, "colour"],
    [{ constructor: 1 }, unknown, "constructor"],
    [{ prompt: "x" }, unknown, "prompt"],
    [JSON.parse(`{"__proto__": {"model": "x"}}`), unknown, "__proto__"],
  ];
  it.each(cases)("%j: %s %s", (more, code, param) => {
    const problem = problemOf(() => chat(more));
    expect([problem.code, problem.param ?? ""]).toEqual([code, param]);
    expect(problem.message).toContain(param.split(/[.[]/)[0]);
  });

  it.each([[[]], ["x"], [null], [5]])("a body that is no object: %j", (body) => {
    expect(problemOf(() => parseChatRequest(body, () => "", limits)).code).toBe("invalid_json");
  });

  it("an own key __proto__ is a key like any other", () => {
    const body = JSON.parse(`{"model":"m","messages":[{"role":"user","content":"x"}],"__proto__":{"temperature":9}}`);
    expect(problemOf(() => parseChatRequest(body, () => "", limits))).toMatchObject({
      code: unknown,
      param: "__proto__",
    });
  });

  it("says what was wrong, what was sent, and what may have been meant", () => {
    expect(problemOf(() => chat({ temperature: "hot" })).message).toBe(
      `temperature must be a number, but it is the string "hot".`,
    );
    expect(problemOf(() => chat({ top_p: 1.5 })).message).toBe("top_p must be at most 1, but it is 1.5.");
    expect(problemOf(() => chat({ temprature: 1 })).message).toContain("Did you mean temperature?");
    expect(problemOf(() => chat({ maxTokens: 1 })).message).toContain("Did you mean max_tokens?");
    expect(problemOf(() => chat({ zzzzzzzzz: 1 })).message).not.toContain("Did you mean");
  });
});

describe("completion requests that are refused", () => {
  const cases: [unknown, string, string][] = [
    [{ prompt: undefined }, missing, "prompt"],
    [{ prompt: "" }, invalid, "prompt"],
    [{ prompt: [] }, invalid, "prompt"],
    [{ prompt: ["a", ""] }, invalid, "prompt[1]"],
    [{ prompt: ["a", 5] }, invalid, "prompt[1]"],
    [{ prompt: [5, "a"] }, invalid, "prompt[1]"],
    [{ prompt: [5, -1] }, invalid, "prompt[1]"],
    [{ prompt: [5, 1.5] }, invalid, "prompt[1]"],
    [{ prompt: [[5], [6, 2 ** 32]] }, invalid, "prompt[1][1]"],
    [{ prompt: [[5], []] }, invalid, "prompt[1]"],
    [{ prompt: [{}] }, invalid, "prompt[0]"],
    [{ prompt: Array(65).fill("a"), n: 2 }, invalid, "n"],
    [{ prompt: Array(129).fill("a") }, invalid, "prompt"],
    [{ logprobs: 6 }, invalid, "logprobs"],
    [{ logprobs: true }, invalid, "logprobs"],
    [{ echo: true }, unsupported, "echo"],
    [{ suffix: "x" }, unsupported, "suffix"],
    [{ best_of: 2 }, unsupported, "best_of"],
    [{ max_completion_tokens: 5 }, unknown, "max_completion_tokens"],
  ];
  it.each(cases)("%j: %s %s", (more, code, param) => {
    expect(problemOf(() => completion(more))).toMatchObject({ code, param });
  });
});

describe("embedding requests that are refused", () => {
  const cases: [unknown, string, string][] = [
    [{ input: undefined }, missing, "input"],
    [{ input: [""] }, invalid, "input[0]"],
    [{ encoding_format: "hex" }, invalid, "encoding_format"],
    [{ dimensions: 0 }, invalid, "dimensions"],
    [{ temperature: 1 }, unknown, "temperature"],
  ];
  it.each(cases)("%j: %s %s", (more, code, param) => {
    expect(problemOf(() => embedding(more))).toMatchObject({ code, param });
  });
});

describe("requests that are taken", () => {
  it("null and empty values of options count as absent", () => {
    const { request, ignored } = chat({
      ...{ temperature: null, stop: null, tools: [], functions: null, tool_choice: null, stream_options: null },
      ...{ response_format: null, logit_bias: null, user: null, n: null },
    });
    expect(ignored).toEqual([]);
    expect(request.generation).toMatchObject({ sampling: {}, choices: 1, stop: [], grammar: undefined });
  });

  it("harmless fields are named", () => {
    const { ignored } = chat({
      ...{ user: "u", store: true, metadata: {}, stream: true },
      stream_options: { include_obfuscation: false },
    });
    expect(ignored).toEqual(["user", "store", "metadata", "stream_options.include_obfuscation"]);
  });

  it("everything honoured arrives", () => {
    const { request } = chat({
      ...{ temperature: 0.5, top_p: 0.9, top_k: -1, min_p: 0.1, presence_penalty: 1, frequency_penalty: -1 },
      ...{ repetition_penalty: 1.1, seed: 7, logit_bias: { 5: -100 }, n: 2, stop: "END", stop_token_ids: [3] },
      ...{ min_tokens: 2, max_tokens: 9, max_completion_tokens: 9, ignore_eos: true, skip_special_tokens: false },
      ...{ include_stop_str_in_output: true, logprobs: true, top_logprobs: 4, stream: true },
      stream_options: { include_usage: true, continuous_usage_stats: true },
      response_format: { type: "grammar", grammar: "root ::= [a-z]" },
    });
    expect(request.generation).toEqual({
      stream: true,
      includeUsage: true,
      continuousUsage: true,
      choices: 2,
      maxTokens: { value: 9, param: "max_completion_tokens" },
      sampling: {
        ...{ temperature: 0.5, topP: 0.9, topK: 0, minP: 0.1, presencePenalty: 1, frequencyPenalty: -1 },
        ...{ repetitionPenalty: 1.1, seed: 7, logitBias: [[5, -100]] },
      },
      minTokens: 2,
      ignoreEos: true,
      stopTokenIds: [3],
      stop: ["END"],
      includeStop: true,
      skipSpecial: false,
      topLogprobs: 4,
      grammar: { kind: "gbnf", grammar: "root ::= [a-z]" },
    });
  });

  it("messages are flattened", () => {
    const { request } = chat({
      messages: [
        { role: "developer", content: "be brief" },
        {
          role: "user",
          content: [
            { type: "text", text: "a" },
            { type: "text", text: "b" },
          ],
          name: "ann",
        },
        { role: "assistant", content: "c", refusal: null, annotations: [], tool_calls: null },
      ],
    });
    expect(request.messages).toEqual([
      { role: "system", content: "be brief" },
      { role: "user", content: "a\nb", name: "ann" },
      { role: "assistant", content: "c" },
    ]);
  });

  it("any safe integer is a seed of 32 bits; small ones stay as they are", () => {
    const seedOf = (seed: number) => chat({ seed }).request.generation.sampling.seed!;
    expect(seedOf(42)).toBe(42);
    fc.assert(
      fc.property(fc.maxSafeInteger(), (seed) => {
        const mapped = seedOf(seed);
        expect(Number.isInteger(mapped) && mapped >= 0 && mapped <= 0xffffffff).toBe(true);
      }),
    );
  });

  it("no body whatever throws anything but a StatorError", () => {
    fc.assert(
      fc.property(
        fc.json(),
        fc.dictionary(
          fc.constantFrom(
            "model",
            "messages",
            "stop",
            "prompt",
            "input",
            "logit_bias",
            "response_format",
            "__proto__",
            "n",
          ),
          fc.jsonValue(),
        ),
        (text, fields) => {
          for (const body of [JSON.parse(text), fields]) {
            problemOf(() => parseChatRequest(body, () => JSON.stringify(body), limits));
            problemOf(() => parseCompletionRequest(body, () => JSON.stringify(body)));
            problemOf(() => parseEmbeddingRequest(body));
          }
        },
      ),
    );
  });
});

describe("jsonSlice", () => {
  it("finds the same value as JSON.parse, untouched", () => {
    fc.assert(
      fc.property(
        fc.jsonValue(),
        fc.dictionary(fc.string(), fc.jsonValue()),
        fc.constantFrom(0, 1, 2),
        (value, others, indent) => {
          const text = JSON.stringify({ ...others, a: { x: 1, 'b"\\': value } }, null, indent);
          expect(JSON.parse(jsonSlice(text, ["a", 'b"\\'])!)).toEqual(JSON.parse(JSON.stringify(value)));
        },
      ),
    );
  });

  it("takes the last of equal keys and keeps what parsing would lose", () => {
    expect(jsonSlice(`{"a":1,"a": {"b" : 2, "1": 9007199254740993 } }`, ["a"])).toBe(
      `{"b" : 2, "1": 9007199254740993 }`,
    );
    expect(jsonSlice(`{"a":1}`, ["b"])).toBeUndefined();
    expect(jsonSlice(`{"a":1}`, ["a", "b"])).toBeUndefined();
  });
});

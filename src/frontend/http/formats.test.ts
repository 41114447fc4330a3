import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { SequenceView } from "../pipeline/answer.ts";
import { byteTokenizer } from "../preprocess/byte-tokenizer.ts";
import { ChatFormat } from "./chat-response.ts";
import { CompletionFormat } from "./completion-response.ts";
import { DONE_FRAME } from "./sse.ts";

const options = { id: "abc", createdAtSeconds: 7, model: `m"\n`, includeUsage: false };
const usage = { promptTokens: 3, completionTokens: 2, cachedTokens: 1 };
const { table } = byteTokenizer;
const formats = [
  ["chat", new ChatFormat(options, table)],
  ["completions", new CompletionFormat(options, table)],
] as const;

describe.each(formats)("%s", (name, format) => {
  const textOf = (frame: string): unknown => {
    expect(frame).toMatch(/^data: [^\r\n]*\n\n$/); // one line, whatever the text
    const [choice] = JSON.parse(frame.slice(6)).choices;
    return name === "chat" ? choice.delta.content : choice.text;
  };

  it("carries any text through one line", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), fc.nat(3), fc.boolean(), (text, index, withUsage) => {
        expect(textOf(format.textChunk(index, text, undefined, withUsage ? usage : undefined))).toBe(text);
      }),
    );
  });

  it("writes plain chunks like all others", () => {
    const plain = JSON.parse(format.textChunk(0, "x", undefined, undefined).slice(6));
    const scored = JSON.parse(format.textChunk(0, "x", [], undefined).slice(6));
    scored.choices[0].logprobs = null;
    expect(plain).toEqual(scored);
    expect(plain).toMatchObject({ created: 7, model: `m"\n`, choices: [{ index: 0, finish_reason: null }] });
  });

  it("has no number in its logprobs that JSON cannot say", () => {
    const scores = [
      {
        token: 200,
        logprob: Number.NEGATIVE_INFINITY,
        top: [
          { token: 201, logprob: -1 },
          { token: 202, logprob: -2 },
        ],
      },
    ];
    const { logprobs } = JSON.parse(format.finishChunk(1, "stop", scores, undefined).slice(6)).choices[0];
    if (name === "chat") {
      expect(logprobs.content[0]).toMatchObject({ token: "\ufffd", logprob: -9999, bytes: [200] });
      expect(logprobs.content[0].top_logprobs.length).toBe(2);
    } else {
      expect(logprobs).toMatchObject({ token_logprobs: [-9999], top_logprobs: [{ "\ufffd": -1, "token_id:202": -2 }] });
    }
  });

  it("ends with usage without choices", () => {
    expect(JSON.parse(format.usageChunk(usage).slice(6))).toMatchObject({
      choices: [],
      usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5, prompt_tokens_details: { cached_tokens: 1 } },
    });
    expect(DONE_FRAME).toBe("data: [DONE]\n\n");
  });

  it("writes a whole body", () => {
    const choice: SequenceView = {
      index: 1,
      hasText: true,
      finish: "length",
      takeText: () => "hi",
      takeScores: () => undefined,
    };
    const body = JSON.parse(format.body([choice], usage));
    expect(body.choices[0]).toMatchObject({ index: 1, finish_reason: "length", logprobs: null });
    expect(name === "chat" ? body.choices[0].message.content : body.choices[0].text).toBe("hi");
  });
});

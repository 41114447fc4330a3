import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateObject, generateText, jsonSchema, streamText } from "ai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StatorServer } from "../harness/stator-process.ts";

describe("the Vercel AI SDK, OpenAI-compatible provider", () => {
  let server: StatorServer;
  let provider: ReturnType<typeof createOpenAICompatible>;

  beforeAll(async () => {
    server = await StatorServer.serve(["--workers", "1"]);
    provider = createOpenAICompatible({
      name: "stator",
      baseURL: `${server.url}/v1`,
      supportsStructuredOutputs: true,
      includeUsage: true,
    });
  });
  afterAll(() => server?.stop());

  it("generates text, and streams the same", async () => {
    const request = {
      model: provider("stator-builtin"),
      prompt: "Hello",
      maxOutputTokens: 16,
      temperature: 0,
      maxRetries: 0,
    };
    const { text, finishReason, usage } = await generateText(request);
    expect(text.length).toBeGreaterThan(0);
    expect(["stop", "length"]).toContain(finishReason);
    const stream = streamText(request);
    let streamed = "";
    for await (const part of stream.textStream) streamed += part;
    expect(streamed).toBe(text);
    expect((await stream.usage).outputTokens).toBe(usage.outputTokens);
  });

  it("generates an object for a schema", async () => {
    const { object } = await generateObject({
      model: provider("stator-builtin"),
      prompt: "Pick",
      schema: jsonSchema<{ size: string }>({
        type: "object",
        properties: { size: { type: "string", enum: ["small", "large"] } },
        required: ["size"],
        additionalProperties: false,
      }),
      maxOutputTokens: 100,
      maxRetries: 0,
    });
    expect(["small", "large"]).toContain(object.size);
  });

  it("completes and embeds", async () => {
    const { text } = await generateText({
      model: provider.completionModel("stator-builtin"),
      prompt: "Once",
      maxOutputTokens: 8,
      maxRetries: 0,
    });
    expect(typeof text).toBe("string");
    const { embedding } = await embed({
      model: provider.textEmbeddingModel("stator-builtin"),
      value: "text",
      maxRetries: 0,
    });
    expect(embedding.length).toBeGreaterThan(0);
  });

  it("cancels", async () => {
    const controller = new AbortController();
    const stream = streamText({
      model: provider("stator-builtin"),
      prompt: "Hello",
      maxOutputTokens: 3000,
      abortSignal: controller.signal,
      maxRetries: 0,
    });
    const parts: string[] = [];
    for await (const part of stream.fullStream) {
      parts.push(part.type);
      if (part.type === "text-delta") controller.abort();
    }
    expect(parts).toContain("abort");
  });
});

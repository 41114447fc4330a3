import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StatorServer, until } from "../harness/stator-process.ts";

/** The official client is the judge: what it accepts, users' programs accept. */
describe("the official openai client", () => {
  let server: StatorServer;
  let client: OpenAI;
  const model = "stator-builtin";
  const messages = [{ role: "user" as const, content: "Hello there" }];

  beforeAll(async () => {
    server = await StatorServer.serve(["--workers", "1"]);
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "any", maxRetries: 0 });
  });
  afterAll(() => server?.stop());

  it("lists and retrieves models", async () => {
    const models = await client.models.list();
    expect(models.data.map(({ id }) => id)).toEqual([model]);
    expect((await client.models.retrieve(model)).id).toBe(model);
  });

  it("chats, and streams the same text", async () => {
    const request = { model, messages, max_completion_tokens: 24, temperature: 0 };
    const answer = await client.chat.completions.create(request);
    expect(answer.choices[0]!.message.role).toBe("assistant");
    expect(answer.usage!.completion_tokens).toBeGreaterThan(0);
    expect(answer.usage!.prompt_tokens_details?.cached_tokens).toBeTypeOf("number");

    let text = "";
    const finishes: string[] = [];
    let usage: OpenAI.CompletionUsage | undefined;
    const stream = await client.chat.completions.create({
      ...request,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      if (chunk.choices[0]?.finish_reason) finishes.push(chunk.choices[0].finish_reason);
      usage = chunk.usage ?? usage;
    }
    expect(text).toBe(answer.choices[0]!.message.content);
    expect(finishes).toEqual([answer.choices[0]!.finish_reason]);
    expect(usage!.completion_tokens).toBe(answer.usage!.completion_tokens);
  });

  it("gives several choices with logprobs", async () => {
    const answer = await client.chat.completions.create({
      model,
      messages,
      n: 2,
      max_tokens: 5,
      seed: 7,
      logprobs: true,
      top_logprobs: 3,
      temperature: 1,
    });
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1]);
    const total = answer.choices.reduce((sum, { logprobs }) => sum + logprobs!.content!.length, 0);
    expect(total).toBe(answer.usage!.completion_tokens);
    for (const { logprobs } of answer.choices)
      for (const entry of logprobs!.content!) expect(entry.top_logprobs).toHaveLength(3);
  });

  it("completes text and token ids", async () => {
    const answer = await client.completions.create({ model, prompt: ["One", "Two"], max_tokens: 4, temperature: 0 });
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1]);
    const ids = await client.completions.create({ model, prompt: [1, 20, 30], max_tokens: 4 });
    expect(ids.usage!.prompt_tokens).toBe(3);
  });

  it("embeds, as floats and through the client's own base64", async () => {
    const input = ["first text", "second text"];
    const base64 = await client.embeddings.create({ model, input });
    const floats = await client.embeddings.create({ model, input, encoding_format: "float" });
    expect(base64.data).toHaveLength(2);
    expect(base64.data[1]!.embedding).toHaveLength(floats.data[1]!.embedding.length);
    const precise = floats.data[1]!.embedding;
    for (const [i, value] of base64.data[1]!.embedding.entries()) expect(value).toBeCloseTo(precise[i]!, 5);
  });

  it("keeps output to a JSON schema", async () => {
    const schema = {
      type: "object",
      properties: { colour: { enum: ["red", "green"] }, count: { enum: [1, 2] } },
      required: ["colour", "count"],
      additionalProperties: false,
    };
    const answer = await client.chat.completions.create({
      model,
      messages,
      max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "thing", schema, strict: true } },
    });
    const value = JSON.parse(answer.choices[0]!.message.content!) as { colour: string; count: number };
    expect(["red", "green"]).toContain(value.colour);
    expect([1, 2]).toContain(value.count);
  });

  it("cancels: the engine stops within a second", async () => {
    const stream = await client.chat.completions.create({
      model,
      messages,
      max_tokens: 3000,
      ignore_eos: true,
      stream: true,
    } as OpenAI.ChatCompletionCreateParamsStreaming);
    for await (const _chunk of stream) break; // leaving the loop aborts the request
    await until(
      async () => (await server.inFlight()) === 0,
      2_000,
      () => "in flight is not 0",
    );
  });

  it("turns errors into the client's classes", async () => {
    await expect(client.chat.completions.create({ model: "nope", messages })).rejects.toMatchObject({
      status: 404,
      code: "model_not_found",
    });
    await expect(client.chat.completions.create({ model, messages, temperature: 3 })).rejects.toMatchObject({
      status: 400,
      param: "temperature",
    });
  });
});

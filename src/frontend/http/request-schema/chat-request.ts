import { z } from "zod";
import { StatorError } from "../../../protocol/errors.ts";
import type { ChatRequest } from "../../pipeline/client-request.ts";
import { sortFields } from "./fields.ts";
import { generationFields, parseGeneration } from "./generation-fields.ts";
import { check, modelName } from "./issues.ts";
import { parseMessages } from "./messages.ts";
import type { Parsed, ParseLimits } from "./parse.ts";

const schema = z.strictObject({
  model: modelName,
  logprobs: z.boolean().optional(),
  top_logprobs: z.int().min(0).max(20).optional(),
  max_completion_tokens: z.int().min(1).optional(),
});

const honoured = new Set([...Object.keys(schema.shape), "messages", ...generationFields]);

/** The body of POST /v1/chat/completions. Throws the first problem as a StatorError. */
export function parseChatRequest(body: unknown, rawBody: () => string, limits: ParseLimits): Parsed<ChatRequest> {
  const sorted = sortFields(body, honoured);
  const { model, messages, logprobs, top_logprobs, max_completion_tokens, ...rest } = sorted.honoured;
  const own = check(schema, { model, logprobs, top_logprobs, max_completion_tokens });
  if (own.top_logprobs !== undefined && own.logprobs !== true) {
    throw new StatorError("invalid_value", "top_logprobs is only allowed together with logprobs: true.", {
      param: "top_logprobs",
    });
  }
  const { generation, ignored } = parseGeneration(
    rest,
    {
      topLogprobs: own.logprobs === true ? (own.top_logprobs ?? 0) : undefined,
      maxCompletionTokens: own.max_completion_tokens,
    },
    rawBody,
  );
  return {
    request: {
      endpoint: "chat",
      model: own.model,
      messages: parseMessages(messages, limits.maxMessages),
      generation,
    },
    ignored: [...sorted.ignored, ...ignored],
  };
}

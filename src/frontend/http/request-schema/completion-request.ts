import { z } from "zod";
import { StatorError } from "../../../protocol/errors.ts";
import type { CompletionRequest } from "../../pipeline/client-request.ts";
import { sortFields } from "./fields.ts";
import { generationFields, MAX_CHOICES, parseGeneration } from "./generation-fields.ts";
import { check, modelName } from "./issues.ts";
import type { Parsed } from "./parse.ts";
import { parsePrompts } from "./prompt-input.ts";

const schema = z.strictObject({
  model: modelName,
  logprobs: z.int().min(0).max(5).optional(),
});

const honoured = new Set([...Object.keys(schema.shape), "prompt", ...generationFields]);

/** The body of POST /v1/completions. Throws the first problem as a StatorError. */
export function parseCompletionRequest(body: unknown, rawBody: () => string): Parsed<CompletionRequest> {
  const sorted = sortFields(body, honoured);
  const { model, prompt, logprobs, ...rest } = sorted.honoured;
  const own = check(schema, { model, logprobs });
  const { generation, ignored } = parseGeneration(rest, { topLogprobs: own.logprobs }, rawBody);
  const prompts = parsePrompts(prompt, "prompt", MAX_CHOICES);
  if (prompts.length * generation.choices > MAX_CHOICES) {
    throw new StatorError(
      "invalid_value",
      `${prompts.length} prompts with n = ${generation.choices} make ${prompts.length * generation.choices} choices; at most ${MAX_CHOICES} are allowed.`,
      { param: "n" },
    );
  }
  return {
    request: { endpoint: "completions", model: own.model, prompts, generation },
    ignored: [...sorted.ignored, ...ignored],
  };
}

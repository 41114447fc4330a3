import { z } from "zod";
import type { EmbeddingRequest } from "../../pipeline/client-request.ts";
import { sortFields } from "./fields.ts";
import { check, modelName } from "./issues.ts";
import type { Parsed } from "./parse.ts";
import { MAX_PROMPTS, parsePrompts } from "./prompt-input.ts";

const schema = z.strictObject({
  model: modelName,
  encoding_format: z.enum(["float", "base64"]).optional(),
  dimensions: z.int().min(1).optional(),
});

const honoured = new Set([...Object.keys(schema.shape), "input"]);

/** The body of POST /v1/embeddings. Throws the first problem as a StatorError. */
export function parseEmbeddingRequest(body: unknown): Parsed<EmbeddingRequest> {
  const { honoured: fields, ignored } = sortFields(body, honoured);
  const { input, ...rest } = fields;
  const own = check(schema, rest);
  return {
    request: {
      endpoint: "embeddings",
      model: own.model,
      inputs: parsePrompts(input, "input", MAX_PROMPTS),
      encodingFormat: own.encoding_format ?? "float",
      dimensions: own.dimensions,
    },
    ignored,
  };
}

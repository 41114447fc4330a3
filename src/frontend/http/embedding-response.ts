import { encodeFloats } from "../../protocol/codec.ts";
import type { Embeddings } from "../pipeline/serve-embeddings.ts";

/** The body of an answer to POST /v1/embeddings. */
export function embeddingBody(embeddings: Embeddings, encodingFormat: "float" | "base64"): string {
  const { model, vectors, promptTokens } = embeddings;
  const data = vectors.map((vector, index) => ({
    object: "embedding",
    index,
    embedding: encodingFormat === "base64" ? Buffer.from(encodeFloats(vector)).toString("base64") : Array.from(vector),
  }));
  return JSON.stringify({
    object: "list",
    data,
    model,
    usage: { prompt_tokens: promptTokens, total_tokens: promptTokens },
  });
}

import { createHash } from "node:crypto";

/** Where text becomes tokens. */
export type TokenizerSource =
  /** A token is a byte; ids 0..255 (the echo engine). */
  | { readonly kind: "bytes" }
  /** Ask a worker of the set over the request plane. */
  | { readonly kind: "engine" }
  /** A tokenizer.json that the frontend can read. */
  | { readonly kind: "huggingface"; readonly path: string };

/** What a worker tells the world about its model. */
export interface ModelCard {
  /** The served name. */
  readonly name: string;
  readonly aliases: readonly string[];
  /** Digest of the weights: two workers with the same digest compute the same. */
  readonly revision: string;
  readonly tokenizer: TokenizerSource;
  /** Jinja source. Absent = no chat with this model. */
  readonly chatTemplate?: string;
  /** Texts handed to the template. */
  readonly bosToken: string;
  readonly eosToken: string;
  readonly vocabularySize: number;
  /** Tokens of prompt and output together. */
  readonly contextLength: number;
  /** Tokens per KV block. */
  readonly blockSize: number;
  readonly roles: readonly WorkerRole[];
  readonly capabilities: ModelCapabilities;
  /** Length of an embedding vector; absent = no embeddings. */
  readonly embeddingLength?: number;
  /** Digest of KV layout and dtype; blocks of equal digest can be exchanged. */
  readonly kvLayout: string;
  readonly defaults: {
    readonly temperature?: number;
    readonly topP?: number;
    readonly topK?: number;
    readonly minP?: number;
  };
}

export type WorkerRole = "aggregated" | "prefill" | "decode";

export interface ModelCapabilities {
  /** Largest `topLogprobs`; -1 = no logprobs at all. */
  readonly maxTopLogprobs: number;
  readonly grammars: readonly ("json_object" | "json_schema" | "gbnf")[];
  /** Names of SamplingParams and StopConditions members that the engine honours. */
  readonly parameters: readonly string[];
  /** The engine honours `GenerateRequest.generated`: a sequence whose worker is lost can go on here. */
  readonly resume?: boolean;
}

/** Equal digests = one worker set. */
export function cardDigest(card: ModelCard): string {
  return createHash("sha256").update(canonicalJson(card)).digest("hex").slice(0, 32);
}

function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value)
      .filter(([, item]) => item !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${canonicalJson(item)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

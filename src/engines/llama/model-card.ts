import { createHash } from "node:crypto";
import { type GgufHeader, ggufNumber, ggufString } from "../../model-files/index.ts";
import { type ModelCard, type TokenizerSource, type TokenTable, tokenBytes } from "../../protocol/index.ts";

/** Largest `topLogprobs`. */
export const maxTopLogprobs = 20;

export interface CardFacts {
  readonly name: string;
  readonly aliases: readonly string[];
  readonly revision: string;
  readonly tokenizer: TokenizerSource;
  readonly table: TokenTable;
  readonly contextLength: number;
  readonly blockSize: number;
  readonly embeddingLength: number;
  readonly kvType: string;
  readonly flashAttention: boolean | "auto";
}

/** What the worker tells about a model, from its file and its settings. */
export function modelCard(header: GgufHeader, facts: CardFacts): ModelCard {
  const chatTemplate = ggufString(header, "tokenizer.chat_template");
  const specialText = (key: string): string => {
    const id = ggufNumber(header, `tokenizer.ggml.${key}_token_id`);
    return id === undefined ? "" : Buffer.from(tokenBytes(facts.table, id)).toString("utf8");
  };
  return {
    name: facts.name,
    aliases: facts.aliases,
    revision: facts.revision,
    tokenizer: facts.tokenizer,
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
    bosToken: specialText("bos"),
    eosToken: specialText("eos"),
    vocabularySize: facts.table.flags.length,
    contextLength: facts.contextLength,
    blockSize: facts.blockSize,
    roles: ["aggregated"],
    capabilities: {
      maxTopLogprobs,
      grammars: ["json_object", "json_schema", "gbnf"],
      parameters: [
        "temperature",
        "topP",
        "topK",
        "minP",
        "presencePenalty",
        "frequencyPenalty",
        "repetitionPenalty",
        "seed",
        "logitBias",
        "maxTokens",
        "minTokens",
        "stopTokenIds",
        "ignoreEos",
      ],
      resume: true,
    },
    embeddingLength: facts.embeddingLength,
    kvLayout: kvLayoutDigest(header, facts),
    defaults: {},
  };
}

/** Everything in the file that shapes KV bytes, and the settings that do. */
function kvLayoutDigest(header: GgufHeader, facts: CardFacts): string {
  const architecture = ggufString(header, "general.architecture") ?? "";
  const hash = createHash("sha256").update(`${facts.revision} ${facts.kvType} ${facts.flashAttention}`);
  for (const [key, value] of [...header.metadata].sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (key.startsWith(`${architecture}.`)) hash.update(`\n${key}=${String(value)}`);
  }
  return hash.digest("hex").slice(0, 32);
}

import type { Grammar, SamplingParams } from "../../protocol/generate.ts";
import type { ChatMessage } from "../preprocess/chat-template.ts";

/** What a client asked for, checked as far as that is possible without knowing the model. */
export interface ChatRequest {
  readonly endpoint: "chat";
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly generation: GenerationOptions;
}

export interface CompletionRequest {
  readonly endpoint: "completions";
  readonly model: string;
  /** At least one. */
  readonly prompts: readonly Prompt[];
  readonly generation: GenerationOptions;
}

export interface EmbeddingRequest {
  readonly endpoint: "embeddings";
  readonly model: string;
  readonly inputs: readonly Prompt[];
  readonly encodingFormat: "float" | "base64";
  readonly dimensions: number | undefined;
}

/** Text or token ids, with the parameter path for errors: `prompt[2]`. */
export interface Prompt {
  readonly content: string | Uint32Array;
  readonly param: string;
}

export interface GenerationOptions {
  readonly stream: boolean;
  readonly includeUsage: boolean;
  /** Every chunk of the stream carries the usage so far. */
  readonly continuousUsage: boolean;
  /** `n`: answers per prompt. */
  readonly choices: number;
  /** The client's limit and the name of the field that it stood in; absent = the endpoint's default. */
  readonly maxTokens: { readonly value: number; readonly param: string } | undefined;
  /** Only what the client sent. */
  readonly sampling: Partial<SamplingParams>;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  readonly stopTokenIds: readonly number[];
  readonly stop: readonly string[];
  readonly includeStop: boolean;
  readonly skipSpecial: boolean;
  readonly topLogprobs: number | undefined;
  readonly grammar: Grammar | undefined;
}

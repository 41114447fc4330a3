import type { Usage } from "../../protocol/generate.ts";
import type { AnswerFinish, ScoredToken, SequenceView } from "../pipeline/answer.ts";

/** What an API's bodies and chunks look like. Two implementations: chat and text completions. */
export interface ResponseFormat {
  /** First frames of a choice; may be empty. */
  openChunk(index: number): string;
  /** The frame that carries text. `usage` only when every chunk has to carry it. */
  textChunk(index: number, text: string, scores: Scores, usage: Usage | undefined): string;
  /** The one frame of a choice that says why it ended. */
  finishChunk(index: number, finish: AnswerFinish, scores: Scores, usage: Usage | undefined): string;
  /** The frame without choices. */
  usageChunk(usage: Usage): string;
  /** The whole answer at once. */
  body(choices: readonly SequenceView[], usage: Usage): string;
}

export type Scores = readonly ScoredToken[] | undefined;

export interface FormatOptions {
  readonly id: string;
  readonly createdAtSeconds: number;
  readonly model: string;
  /** Chunks have a `usage` member, null on all but the last. */
  readonly includeUsage: boolean;
}

export function usageJson({ promptTokens, completionTokens, cachedTokens }: Usage): string {
  return `{"prompt_tokens":${promptTokens},"completion_tokens":${completionTokens},"total_tokens":${
    promptTokens + completionTokens
  },"prompt_tokens_details":{"cached_tokens":${cachedTokens}}}`;
}

/** The `usage` member of a chunk that is not the last. */
export function chunkUsage(usage: Usage | undefined, includeUsage: boolean): string {
  if (usage !== undefined) return `,"usage":${usageJson(usage)}`;
  return includeUsage ? `,"usage":null` : "";
}

/** JSON has no minus infinity. */
export function finiteLogprob(logprob: number): number {
  return Math.max(logprob, -9999);
}

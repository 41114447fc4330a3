import type { Usage } from "../../protocol/generate.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { AnswerFinish, SequenceView } from "../pipeline/answer.ts";
import { tokenText } from "../postprocess/token-text.ts";
import {
  chunkUsage,
  type FormatOptions,
  finiteLogprob,
  type ResponseFormat,
  type Scores,
  usageJson,
} from "./response-format.ts";

/** Bodies and chunks of POST /v1/completions. */
export class CompletionFormat implements ResponseFormat {
  readonly #table: TokenTable;
  readonly #includeUsage: boolean;
  readonly #head: string;
  readonly #plainPrefix: string;
  readonly #plainSuffix: string;
  /** Characters so far, per choice: where the next token's text begins. */
  readonly #offsets = new Map<number, number>();

  constructor({ id, createdAtSeconds, model, includeUsage }: FormatOptions, table: TokenTable) {
    this.#table = table;
    this.#includeUsage = includeUsage;
    this.#head = `{"id":${JSON.stringify(`cmpl-${id}`)},"object":"text_completion","created":${createdAtSeconds},"model":${JSON.stringify(model)},"system_fingerprint":null,"choices":[`;
    this.#plainPrefix = `data: ${this.#head}{"index":0,"text":`;
    this.#plainSuffix = `,"logprobs":null,"finish_reason":null}]${chunkUsage(undefined, includeUsage)}}\n\n`;
  }

  openChunk(): string {
    return "";
  }

  textChunk(index: number, text: string, scores: Scores, usage: Usage | undefined): string {
    if (index === 0 && scores === undefined && usage === undefined) {
      return this.#plainPrefix + JSON.stringify(text) + this.#plainSuffix;
    }
    return this.#chunk(this.#choice(index, text, scores, "null"), usage);
  }

  finishChunk(index: number, finish: AnswerFinish, scores: Scores, usage: Usage | undefined): string {
    return this.#chunk(this.#choice(index, "", scores?.length === 0 ? undefined : scores, `"${finish}"`), usage);
  }

  usageChunk(usage: Usage): string {
    return `data: ${this.#head}],"usage":${usageJson(usage)}}\n\n`;
  }

  body(choices: readonly SequenceView[], usage: Usage): string {
    const parts = choices.map((choice) =>
      this.#choice(choice.index, choice.takeText(), choice.takeScores(), `"${choice.finish}"`),
    );
    return `${this.#head}${parts.join(",")}],"usage":${usageJson(usage)}}`;
  }

  #chunk(choice: string, usage: Usage | undefined): string {
    return `data: ${this.#head}${choice}]${chunkUsage(usage, this.#includeUsage)}}\n\n`;
  }

  #choice(index: number, text: string, scores: Scores, finish: string): string {
    return `{"index":${index},"text":${JSON.stringify(text)},"logprobs":${this.#logprobs(index, scores)},"finish_reason":${finish}}`;
  }

  #logprobs(index: number, scores: Scores): string {
    if (scores === undefined) return "null";
    let offset = this.#offsets.get(index) ?? 0;
    const tokens: string[] = [];
    const textOffsets: number[] = [];
    for (const { token } of scores) {
      const text = tokenText(this.#table, token).token;
      tokens.push(text);
      textOffsets.push(offset);
      offset += text.length;
    }
    this.#offsets.set(index, offset);
    return JSON.stringify({
      tokens,
      token_logprobs: scores.map(({ logprob }) => finiteLogprob(logprob)),
      top_logprobs: scores.map(({ top }) => this.#alternatives(top)),
      text_offset: textOffsets,
    });
  }

  /** Text -> logprob. Tokens that look alike as text (broken UTF-8) keep an entry each, under their id. */
  #alternatives(top: readonly { token: number; logprob: number }[]): Record<string, number> {
    const byText = new Map<string, number>();
    for (const { token, logprob } of top) {
      const { token: text } = tokenText(this.#table, token);
      byText.set(byText.has(text) ? `token_id:${token}` : text, finiteLogprob(logprob));
    }
    return Object.fromEntries(byText);
  }
}

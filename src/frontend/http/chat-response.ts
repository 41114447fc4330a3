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

/** Bodies and chunks of POST /v1/chat/completions. */
export class ChatFormat implements ResponseFormat {
  readonly #options: FormatOptions;
  readonly #table: TokenTable;
  readonly #includeUsage: boolean;
  /** All that is the same in every chunk, up to the choices. */
  readonly #chunkHead: string;
  /** The parts around the text of a plain chunk of choice 0: nearly all chunks. */
  readonly #plainPrefix: string;
  readonly #plainSuffix: string;

  constructor(options: FormatOptions, table: TokenTable) {
    const { includeUsage } = options;
    this.#options = options;
    this.#table = table;
    this.#includeUsage = includeUsage;
    this.#chunkHead = `data: ${head(options, "chat.completion.chunk")}`;
    this.#plainPrefix = `${this.#chunkHead}{"index":0,"delta":{"content":`;
    this.#plainSuffix = `},"logprobs":null,"finish_reason":null}]${chunkUsage(undefined, includeUsage)}}\n\n`;
  }

  openChunk(index: number): string {
    return this.#chunk(index, `"role":"assistant","content":"","refusal":null`, undefined, "null", undefined);
  }

  textChunk(index: number, text: string, scores: Scores, usage: Usage | undefined): string {
    if (index === 0 && scores === undefined && usage === undefined) {
      return this.#plainPrefix + JSON.stringify(text) + this.#plainSuffix;
    }
    return this.#chunk(index, `"content":${JSON.stringify(text)}`, scores, "null", usage);
  }

  finishChunk(index: number, finish: AnswerFinish, scores: Scores, usage: Usage | undefined): string {
    return this.#chunk(index, "", scores?.length === 0 ? undefined : scores, `"${finish}"`, usage);
  }

  usageChunk(usage: Usage): string {
    return `${this.#chunkHead}],"usage":${usageJson(usage)}}\n\n`;
  }

  body(choices: readonly SequenceView[], usage: Usage): string {
    const parts = choices.map(
      (choice) =>
        `{"index":${choice.index},"message":{"role":"assistant","content":${JSON.stringify(choice.takeText())},"refusal":null},"logprobs":${this.#logprobs(choice.takeScores())},"finish_reason":"${choice.finish}"}`,
    );
    return `${head(this.#options, "chat.completion")}${parts.join(",")}],"usage":${usageJson(usage)}}`;
  }

  #chunk(index: number, delta: string, scores: Scores, finish: string, usage: Usage | undefined): string {
    return `${this.#chunkHead}{"index":${index},"delta":{${delta}},"logprobs":${this.#logprobs(scores)},"finish_reason":${finish}}]${chunkUsage(usage, this.#includeUsage)}}\n\n`;
  }

  #logprobs(scores: Scores): string {
    if (scores === undefined) return "null";
    const content = scores.map(({ token, logprob, top }) => ({
      ...this.#scored(token, logprob),
      top_logprobs: top.map((entry) => this.#scored(entry.token, entry.logprob)),
    }));
    return JSON.stringify({ content, refusal: null });
  }

  #scored(id: number, logprob: number): { token: string; logprob: number; bytes: number[] } {
    const { token, bytes } = tokenText(this.#table, id);
    return { token, logprob: finiteLogprob(logprob), bytes };
  }
}

function head({ id, createdAtSeconds, model }: FormatOptions, object: string): string {
  return `{"id":${JSON.stringify(`chatcmpl-${id}`)},"object":"${object}","created":${createdAtSeconds},"model":${JSON.stringify(model)},"system_fingerprint":null,"choices":[`;
}

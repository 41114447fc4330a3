import { StatorError } from "../../protocol/errors.ts";
import { longestToken, type TokenTable } from "../../protocol/token-table.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { Tokenizer } from "../preprocess/tokenizer.ts";
import type { ChatRequest, Prompt } from "./client-request.ts";
import { checkTokenIds } from "./model-limits.ts";

/** A prompt as the engine takes it. */
export interface TokenizedPrompt {
  readonly tokens: Uint32Array;
  /** Where the client wrote it, for errors. */
  readonly param: string;
}

/** messages -> template -> text -> tokens */
export async function tokenizeChat(
  request: ChatRequest,
  model: ServedModel,
  tokenizer: Tokenizer,
  signal: AbortSignal,
): Promise<TokenizedPrompt> {
  const template = model.chatTemplate();
  let bytes = 0;
  for (const message of request.messages) bytes += Buffer.byteLength(message.content);
  refuseHopeless(bytes, model, tokenizer.table, "messages");
  const text = template.render(request.messages);
  const tokens = await tokenizer.encode(text, { addSpecial: false, parseSpecial: true }, signal);
  return checkedPrompt(tokens, model, "messages");
}

/** text or ids -> tokens */
export async function tokenizePrompts(
  prompts: readonly Prompt[],
  model: ServedModel,
  tokenizer: Tokenizer,
  signal: AbortSignal,
): Promise<TokenizedPrompt[]> {
  const tokenized: TokenizedPrompt[] = [];
  for (const { content, param } of prompts) {
    if (typeof content === "string") {
      refuseHopeless(Buffer.byteLength(content), model, tokenizer.table, param);
      const tokens = await tokenizer.encode(content, { addSpecial: true, parseSpecial: true }, signal);
      tokenized.push(checkedPrompt(tokens, model, param));
    } else {
      checkTokenIds(content, model.card, param);
      tokenized.push(checkedPrompt(content, model, param));
    }
  }
  return tokenized;
}

function checkedPrompt(tokens: Uint32Array, model: ServedModel, param: string): TokenizedPrompt {
  const { contextLength, name } = model.card;
  if (tokens.length === 0) throw new StatorError("invalid_value", `${param} has no tokens.`, { param });
  if (tokens.length + 1 > contextLength) throw tooLong(`${tokens.length}`, contextLength, name, param);
  return { tokens, param };
}

/** A text of n bytes has at least n / (longest token) tokens: what cannot fit is not tokenized at all. */
function refuseHopeless(bytes: number, model: ServedModel, table: TokenTable, param: string): void {
  const { contextLength, name } = model.card;
  if (bytes <= contextLength) return;
  const fewest = Math.ceil(bytes / longestTokenOf(table));
  if (fewest + 1 > contextLength) throw tooLong(`at least ${fewest}`, contextLength, name, param);
}

function tooLong(tokens: string, contextLength: number, model: string, param: string): StatorError {
  return new StatorError(
    "context_length_exceeded",
    `The context of model ${JSON.stringify(model)} is ${contextLength} tokens, and ${param} has ${tokens}; at least one must be left for the answer.`,
    { param },
  );
}

const longestByTable = new WeakMap<TokenTable, number>();

function longestTokenOf(table: TokenTable): number {
  let longest = longestByTable.get(table);
  if (longest === undefined) {
    longest = longestToken(table);
    longestByTable.set(table, longest);
  }
  return longest;
}

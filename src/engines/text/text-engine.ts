import type { Engine, EngineDescriptor, EngineHealth, EngineLoads, Tokenizing } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { Finish, FinishReason, GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { buildTokenTable } from "../../protocol/token-table.ts";
import { RunningRequests } from "../running-requests.ts";
import { refuseUnsupported } from "./refuse-unsupported.ts";

export interface TextEngineOptions {
  /** Served name. */
  readonly name: string;
  /**
   * The answer to a prompt (for chats: the text that the chat template makes), in pieces of any size. It ends when the
   * text is complete. `signal` aborts when nobody wants the rest. What it throws ends the request with that error.
   */
  readonly generate: (prompt: string, request: GenerateRequest, signal: AbortSignal) => AsyncIterable<string>;
  /**
   * Members of SamplingParams and StopConditions that `generate` honours, for example `temperature`; the others are
   * refused by name. `maxTokens` and `stopTokenIds` need not be listed: the engine cuts the text itself.
   */
  readonly parameters?: readonly string[];
  /** Workers with the same name and revision serve together: they must answer alike. Default `1`. */
  readonly revision?: string;
  readonly aliases?: readonly string[];
  /** Bytes of prompt and answer together. Default 1,048,576. */
  readonly contextLength?: number;
  /** Requests that run at once; more wait in the worker's queue. Default 64. */
  readonly maxRunning?: number;
  /** Jinja. Default: `role: content` lines. */
  readonly chatTemplate?: string;
}

const BLOCK_SIZE = 16;
const MAX_DELTA_BYTES = 4096;
const CHAT_TEMPLATE =
  "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}" +
  "{% if add_generation_prompt %}assistant: {% endif %}";

/** An engine made of one function from text to text; its tokens are UTF-8 bytes. */
export class TextEngine implements Engine {
  readonly tokenizing: Tokenizing = { tokenize: async (text) => tokensOf(text), tokenTable: () => byteTable };
  readonly #options: TextEngineOptions;
  readonly #descriptor: EngineDescriptor;
  readonly #running = new RunningRequests<AbortController>();

  constructor(options: TextEngineOptions) {
    this.#options = options;
    this.#descriptor = describe(options);
  }

  describe(): EngineDescriptor {
    return this.#descriptor;
  }

  async health(): Promise<EngineHealth> {
    return this.#running.health;
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<TokenDelta> {
    this.#running.assertAccepting();
    const { card } = this.#descriptor;
    refuseUnsupported(request, card);
    const end = new AbortController();
    const both = AbortSignal.any([signal, end.signal]);
    this.#running.add(end);
    try {
      const limit = Math.min(request.stop.maxTokens, card.contextLength - request.tokens.length);
      const prompt = Buffer.from(request.tokens).toString("utf8");
      yield* pieces(this.#options.generate(prompt, request, both), request, limit, both);
      if (this.#running.isClosed) throw new StatorError("draining", "The engine was closed.");
    } finally {
      end.abort();
      this.#running.remove(end);
    }
  }

  loads(): EngineLoads {
    return { running: this.#running.size, waiting: 0 };
  }

  drain(signal: AbortSignal): Promise<void> {
    return this.#running.drain(signal);
  }

  async close(): Promise<void> {
    for (const end of this.#running.close()) end.abort(new StatorError("draining", "The engine was closed."));
  }
}

/** The texts as deltas up to a stop token or `limit` bytes, with the finish. A text that does not come keeps nobody. */
async function* pieces(
  texts: AsyncIterable<string>,
  { tokens: prompt, stop }: GenerateRequest,
  limit: number,
  signal: AbortSignal,
): AsyncGenerator<TokenDelta> {
  const iterator = texts[Symbol.asyncIterator]();
  let made = 0;
  /** The first half of a character whose second half comes with the next piece. */
  let half = "";
  const finish = (reason: FinishReason, stopTokenId?: number): Finish => ({
    reason,
    ...(stopTokenId === undefined ? {} : { stopTokenId }),
    usage: { promptTokens: prompt.length, completionTokens: made, cachedTokens: 0 },
  });
  const aborted = new Promise<"aborted">((resolve) => {
    if (signal.aborted) resolve("aborted");
    signal.addEventListener("abort", () => resolve("aborted"), { once: true });
  });
  try {
    for (;;) {
      const next = iterator.next();
      next.catch(() => {}); // nobody hears it after an abort
      const result = await Promise.race([aborted, next]);
      if (result === "aborted") {
        yield { tokens: tokensOf(""), finish: finish("abort") };
        return;
      }
      const text = half + (result.done === true ? "" : result.value);
      const endsInHalf = (text.charCodeAt(text.length - 1) & 0xfc00) === 0xd800;
      half = endsInHalf && result.done !== true ? text.slice(-1) : "";
      const whole = tokensOf(text.slice(0, text.length - half.length)).subarray(0, limit - made);
      const stopAt = whole.findIndex((token, i) => made + i >= stop.minTokens && stop.stopTokenIds.includes(token));
      const tokens = stopAt < 0 ? whole : whole.subarray(0, stopAt);
      for (let at = 0; at < tokens.length; at += MAX_DELTA_BYTES) {
        const piece = tokens.slice(at, at + MAX_DELTA_BYTES);
        made += piece.length;
        yield made === limit ? { tokens: piece, finish: finish("length") } : { tokens: piece };
        if (made === limit) return;
        if (signal.aborted) break;
      }
      if (stopAt >= 0 && !signal.aborted) {
        yield { tokens: tokensOf(""), finish: finish("stop", whole[stopAt]!) };
        return;
      }
      if (result.done === true && !signal.aborted) {
        yield { tokens: tokensOf(""), finish: finish("stop") };
        return;
      }
    }
  } finally {
    // Not awaited: a function that does not react must not hold the request.
    void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

function describe(options: TextEngineOptions): EngineDescriptor {
  const contextLength = options.contextLength ?? 1_048_576;
  return {
    kind: "text",
    version: "1",
    capacity: { maxRunning: options.maxRunning ?? 64, totalBlocks: Math.ceil(contextLength / BLOCK_SIZE) },
    card: {
      name: options.name,
      aliases: options.aliases ?? [],
      revision: options.revision ?? "1",
      tokenizer: { kind: "bytes" },
      chatTemplate: options.chatTemplate ?? CHAT_TEMPLATE,
      bosToken: "",
      eosToken: "",
      vocabularySize: 256,
      contextLength,
      blockSize: BLOCK_SIZE,
      roles: ["aggregated"],
      capabilities: {
        maxTopLogprobs: -1,
        grammars: [],
        parameters: ["maxTokens", "stopTokenIds", ...(options.parameters ?? [])],
      },
      kvLayout: "none",
      defaults: {},
    },
  };
}

function tokensOf(text: string): Uint32Array {
  return Uint32Array.from(Buffer.from(text, "utf8"));
}

const byteTable = buildTokenTable(Array.from({ length: 256 }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })));

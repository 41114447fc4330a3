import type {
  Embedding,
  Engine,
  EngineDescriptor,
  EngineHealth,
  EngineLoads,
  Tokenizing,
} from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { buildTokenTable } from "../../protocol/token-table.ts";
import { RunningRequests } from "../running-requests.ts";
import { EchoStream, type Pacer } from "./echo-stream.ts";

const VOCABULARY_SIZE = 256;
const MAX_TOP_LOGPROBS = 20;
const EMBEDDING_LENGTH = 64;
const BLOCK_SIZE = 16;
/** Append-only: the text of a conversation is a prefix of the text of the longer one. */
const CHAT_TEMPLATE =
  "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}" +
  "{% if add_generation_prompt %}assistant: {% endif %}";

export interface EchoEngineOptions {
  /** Served name. Default `echo`. */
  readonly name?: string;
  readonly aliases?: readonly string[];
  /** Tokens per second of each stream; 0 = as fast as possible. Default 0. */
  readonly tokenRate?: number;
  /** Default 1,048,576. */
  readonly contextLength?: number;
  /** Default 16,384. */
  readonly maxRunning?: number;
}

/** No model: a token is a byte, and the answer is the prompt, again and again. For tests and benchmarks. */
export class EchoEngine implements Engine {
  readonly tokenizing: Tokenizing = { tokenize: tokenizeBytes, tokenTable: () => byteTable };
  readonly embedding: Embedding = { embed: embedBytes };
  readonly #descriptor: EngineDescriptor;
  readonly #running = new RunningRequests<EchoStream>();
  readonly #paced = new Set<EchoStream>();
  readonly #pacer: Pacer | undefined;
  readonly #tickMs: number;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: EchoEngineOptions = {}) {
    const contextLength = options.contextLength ?? 1_048_576;
    const maxRunning = options.maxRunning ?? 16_384;
    const tokenRate = options.tokenRate ?? 0;
    if (!(tokenRate >= 0 && tokenRate <= 1_000_000))
      throw new RangeError(`tokenRate must be 0 to 1000000, not ${tokenRate}`);
    this.#descriptor = describeEcho(options, contextLength, maxRunning);
    // A third of the gap between two tokens: late by little, without a timer per token.
    this.#tickMs = Math.min(Math.max(Math.round(1000 / 3 / tokenRate), 1), 10);
    this.#pacer =
      tokenRate === 0
        ? undefined
        : { tokensPerSecond: tokenRate, add: this.#pace, remove: (it) => this.#paced.delete(it) };
  }

  describe(): EngineDescriptor {
    return this.#descriptor;
  }

  async health(): Promise<EngineHealth> {
    return this.#running.health;
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta> {
    const { contextLength } = this.#descriptor.card;
    const begin = (stream: EchoStream): void => {
      this.#running.assertAccepting();
      checkRequest(request, contextLength);
      this.#running.add(stream);
    };
    return new EchoStream(request, contextLength, signal, this.#pacer, begin, this.#onOver);
  }

  loads(): EngineLoads {
    return { running: this.#running.size, waiting: 0 };
  }

  drain(signal: AbortSignal): Promise<void> {
    return this.#running.drain(signal);
  }

  async close(): Promise<void> {
    for (const stream of this.#running.close()) stream.fail(new StatorError("draining", "The engine was closed."));
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  readonly #onOver = (stream: EchoStream): void => {
    this.#running.remove(stream);
  };

  readonly #pace = (stream: EchoStream): void => {
    this.#paced.add(stream);
    this.#timer ??= setInterval(this.#wakeDue, this.#tickMs);
  };

  readonly #wakeDue = (): void => {
    const now = performance.now();
    const rate = this.#pacer?.tokensPerSecond ?? 0;
    for (const stream of this.#paced) stream.wake(now, rate);
    if (this.#running.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  };
}

function describeEcho(options: EchoEngineOptions, contextLength: number, maxRunning: number): EngineDescriptor {
  return {
    kind: "echo",
    version: "1",
    capacity: { maxRunning, totalBlocks: Math.ceil(contextLength / BLOCK_SIZE) },
    card: {
      name: options.name ?? "echo",
      aliases: options.aliases ?? [],
      revision: "echo-1",
      tokenizer: { kind: "bytes" },
      chatTemplate: CHAT_TEMPLATE,
      bosToken: "",
      eosToken: "",
      vocabularySize: VOCABULARY_SIZE,
      contextLength,
      blockSize: BLOCK_SIZE,
      roles: ["aggregated"],
      capabilities: {
        maxTopLogprobs: MAX_TOP_LOGPROBS,
        grammars: [],
        // All the probability is on one byte, so every way to sample, and every penalty in its range, gives that byte.
        parameters: [
          "temperature",
          "topP",
          "topK",
          "minP",
          "presencePenalty",
          "frequencyPenalty",
          "repetitionPenalty",
          "seed",
          "maxTokens",
          "minTokens",
          "stopTokenIds",
          "ignoreEos",
        ],
        resume: true,
      },
      embeddingLength: EMBEDDING_LENGTH,
      kvLayout: "none",
      defaults: {},
    },
  };
}

function checkRequest(request: GenerateRequest, contextLength: number): void {
  const { tokens, sampling, stop, grammar, topLogprobs, generated } = request;
  if (grammar) throw unsupported("response_format", "constrained output");
  if (sampling.logitBias && sampling.logitBias.length > 0) throw unsupported("logit_bias", "logit bias");
  if (topLogprobs !== undefined && topLogprobs > MAX_TOP_LOGPROBS) {
    throw new StatorError("invalid_value", `At most ${MAX_TOP_LOGPROBS} top logprobs.`, { param: "top_logprobs" });
  }
  if (tokens.length === 0) throw new StatorError("invalid_value", "The prompt is empty.", { param: "prompt" });
  if (tokens.length >= contextLength) {
    throw new StatorError(
      "context_length_exceeded",
      `The prompt has ${tokens.length} tokens; with one token of output at most ${contextLength} fit.`,
      { param: "prompt" },
    );
  }
  for (const token of tokens) {
    if (token >= VOCABULARY_SIZE) {
      throw new StatorError("invalid_value", `Token ${token} is not in the vocabulary.`, { param: "prompt" });
    }
  }
  if (generated !== undefined && generated.length > Math.min(stop.maxTokens, contextLength - tokens.length)) {
    throw new StatorError("invalid_value", "More tokens have been generated than the sequence may have.", {
      param: "generated",
    });
  }
  if (new Set(stop.stopTokenIds.filter((id) => id < VOCABULARY_SIZE)).size === VOCABULARY_SIZE && stop.minTokens > 0) {
    throw new StatorError("invalid_value", "Every token is a stop token.", { param: "stop_token_ids" });
  }
}

function unsupported(param: string, what: string): StatorError {
  return new StatorError("unsupported_parameter", `The echo engine has no ${what}.`, { param });
}

async function tokenizeBytes(text: string): Promise<Uint32Array> {
  return Uint32Array.from(Buffer.from(text, "utf8"));
}

/** A vector that depends on every byte and its place; equal texts have equal vectors. */
async function embedBytes(tokens: Uint32Array): Promise<Float32Array> {
  const sums = new Float64Array(EMBEDDING_LENGTH);
  for (let i = 0; i < tokens.length; i++) {
    const at = (tokens[i]! + i * 7) % EMBEDDING_LENGTH;
    sums[at] = sums[at]! + 1 + tokens[i]! / VOCABULARY_SIZE;
  }
  const length = Math.hypot(...sums) || 1;
  return Float32Array.from(sums, (sum) => sum / length);
}

const byteTable = buildTokenTable(
  Array.from({ length: VOCABULARY_SIZE }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })),
);

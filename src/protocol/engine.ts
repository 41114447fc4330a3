import type { GenerateRequest, TokenDelta } from "./generate.ts";
import type { ModelCard } from "./model-card.ts";
import type { TokenTable } from "./token-table.ts";

/**
 * What every engine has. Capabilities are optional members; a caller looks, it never guesses from `kind`.
 *
 * Rules (checked by `engines/conformance`):
 * 1. `generate` yields deltas as they come; the last one carries `finish`; or it throws one StatorError. Never both,
 *    never neither. Bad parameters throw before the first token. While the engine makes progress on a request whose
 *    consumer pulls, a delta comes at least every few seconds, an empty one when there is no token yet (a long prefill):
 *    silence of all requests is how the worker host tells a hung engine from a busy one.
 * 2. When `signal` aborts, the engine stops its work within 1 s and frees what the request held, also when nobody pulls
 *    the iterator any more (`return()` is called). It may end with `finish.reason = "abort"` or by throwing.
 * 3. Requests run side by side; one that fails does not touch another.
 * 4. What an engine cannot honour it refuses with `unsupported_parameter` and `param`; it never drops it.
 * 5. `loads` and `describe` are cheap and synchronous.
 * 6. After `drain` has been called, new requests are refused with `draining`; running ones go on.
 * 7. With `generated` (when the card says `resume`) the tokens that follow are those that an undisturbed run with the same
 *    seed would give. What cannot be taken up exactly ends with an error, never with other text.
 * 8. `close` ends everything at once, is idempotent, and leaves no process, thread or file behind.
 */
export interface Engine {
  describe(): EngineDescriptor;
  /** `canary` runs one token through the engine; `liveness` must not. Rejects only when `signal` aborts. */
  health(probe: "liveness" | "canary", signal: AbortSignal): Promise<EngineHealth>;
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta>;
  loads(): EngineLoads;
  /** Resolves when nothing runs any more, or when `signal` aborts. */
  drain(signal: AbortSignal): Promise<void>;
  close(): Promise<void>;

  readonly tokenizing?: Tokenizing;
  readonly embedding?: Embedding;
  /** By path below `/engine/` of the system port. */
  readonly admin?: ReadonlyMap<string, AdminAction>;
}

/** A view or an action for operators: JSON in, JSON out. */
export type AdminAction = (argument: unknown, signal: AbortSignal) => Promise<unknown> | unknown;

export interface EngineDescriptor {
  /** `llama`, `echo`, `mocker`, `vllm`, ... */
  readonly kind: string;
  readonly version: string;
  readonly card: ModelCard;
  readonly capacity: EngineCapacity;
}

/** What differs between two workers of one model; not part of the model's identity. */
export interface EngineCapacity {
  /** Requests that run at once; more are queued by the worker host. */
  readonly maxRunning: number;
  /** KV blocks of `card.blockSize` tokens. */
  readonly totalBlocks: number;
}

export interface EngineHealth {
  readonly state: "starting" | "ready" | "draining" | "unhealthy";
  /** Why it is not ready. */
  readonly reason?: string;
}

export interface EngineLoads {
  readonly running: number;
  /** Requests that wait inside the engine. */
  readonly waiting: number;
  /** undefined = the engine does not tell; unknown is not zero. */
  readonly usedBlocks?: number;
}

/** The engine knows its own tokenizer. */
export interface Tokenizing {
  /**
   * `addSpecial`: put the model's BOS/EOS around as its metadata says. `parseSpecial`: text such as `<|im_end|>` becomes
   * the special token.
   */
  tokenize(
    text: string,
    options: { addSpecial: boolean; parseSpecial: boolean },
    signal: AbortSignal,
  ): Promise<Uint32Array>;
  /** The bytes of every token. Constant for the life of the engine. */
  tokenTable(): TokenTable;
}

export interface Embedding {
  /** One vector; its length is `card.embeddingLength`. Not normalised further than the model does. */
  embed(tokens: Uint32Array, signal: AbortSignal): Promise<Float32Array>;
}

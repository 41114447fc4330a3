import type { StatorError } from "../../protocol/errors.ts";
import type { Finish, FinishReason, GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { hashOf, mockToken } from "./mock-text.ts";

/** Most tokens of one delta. */
const MAX_DELTA_TOKENS = 4096;

export interface MockStreamOwner {
  /** Throws when the request is refused. */
  begin(stream: MockStream): void;
  /** Nobody wants the rest. Once, and only after `begin`. */
  leave(stream: MockStream): void;
}

/** One request of a mock engine: the simulation says how many tokens there are, the rest follows from the prompt. */
export class MockStream implements AsyncIterableIterator<TokenDelta> {
  readonly request: GenerateRequest;
  readonly promptHash: number;
  readonly #owner: MockStreamOwner;
  readonly #signal: AbortSignal;
  readonly #stopTokens: ReadonlySet<number>;
  #state: "new" | "running" | "over" = "new";
  #made: number;
  #told: number;
  #end: FinishReason | undefined;
  #cachedTokens = 0;
  #failure: StatorError | undefined;
  #waiting: { resolve: (result: IteratorResult<TokenDelta>) => void; reject: (reason: unknown) => void } | undefined;

  constructor(request: GenerateRequest, signal: AbortSignal, owner: MockStreamOwner) {
    this.request = request;
    this.promptHash = hashOf(request.tokens);
    this.#owner = owner;
    this.#signal = signal;
    this.#stopTokens = new Set(request.stop.stopTokenIds);
    this.#made = request.generated?.length ?? 0;
    this.#told = this.#made;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<TokenDelta>> {
    if (this.#failure) return Promise.reject(this.#takeFailure());
    if (this.#state === "over") return Promise.resolve({ value: undefined, done: true });
    if (this.#state === "new") {
      try {
        this.#owner.begin(this);
      } catch (thrown) {
        this.#state = "over";
        return Promise.reject(thrown);
      }
      this.#state = "running";
      this.#signal.addEventListener("abort", this.#onAbort, { once: true });
    }
    if (this.#signal.aborted) this.#end = "abort";
    const delta = this.#takeDelta();
    if (delta) return Promise.resolve({ value: delta, done: false });
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
  }

  return(): Promise<IteratorResult<TokenDelta>> {
    this.#leave();
    this.#settle({ value: undefined, done: true });
    return Promise.resolve({ value: undefined, done: true });
  }

  /** The answer's token at `index`. Before minTokens no stop token may come: another one stands in. */
  tokenAt(index: number): number {
    const token = mockToken(this.promptHash, index);
    if (index >= this.request.stop.minTokens || !this.#stopTokens.has(token)) return token;
    for (let other = 0; other < 256; other++) if (!this.#stopTokens.has(other)) return other;
    return token; // refused at the beginning: every token is a stop token
  }

  /** Whether another worker has made what this one would have made, and has not gone beyond the end. */
  fits(generated: Uint32Array): boolean {
    return generated.every((token, i) => token === this.tokenAt(i) && !this.#stopTokens.has(token));
  }

  admitted(cachedTokens: number): void {
    // A resumed or preempted request finds its own tokens again; what counts is what the first admission found.
    if (this.#made === this.#told) this.#cachedTokens = Math.min(cachedTokens, this.request.tokens.length - 1);
  }

  /** So many more tokens exist; `last` = they were the last ones. */
  progress(tokens: number, last: FinishReason | undefined): void {
    this.#made += tokens;
    if (last !== undefined) this.#end = last;
    this.#deliver();
  }

  /** A sign of life for a consumer that waits. */
  signOfLife(): void {
    this.#settle({ value: { tokens: new Uint32Array(0) }, done: false });
  }

  fail(error: StatorError): void {
    this.#leave();
    if (this.#waiting) this.#waiting.reject(error);
    else this.#failure = error;
    this.#waiting = undefined;
  }

  readonly #onAbort = (): void => {
    this.#end = "abort";
    this.#deliver();
  };

  #deliver(): void {
    if (!this.#waiting) return;
    const delta = this.#takeDelta();
    if (delta) this.#settle({ value: delta, done: false });
  }

  /** What there is and has not been told; undefined when that is nothing. */
  #takeDelta(): TokenDelta | undefined {
    const isAborted = this.#end === "abort";
    const count = isAborted ? 0 : Math.min(this.#made - this.#told, MAX_DELTA_TOKENS);
    const tokens = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      const token = this.tokenAt(this.#told);
      if (this.#stopTokens.has(token)) return this.#finish(tokens.slice(0, i), "stop", token);
      tokens[i] = token;
      this.#told++;
    }
    if (this.#end !== undefined && (isAborted || this.#told === this.#made)) return this.#finish(tokens, this.#end);
    return count > 0 ? { tokens } : undefined;
  }

  #finish(tokens: Uint32Array, reason: FinishReason, stopTokenId?: number): TokenDelta {
    this.#leave();
    const finish: Finish = {
      reason,
      ...(stopTokenId === undefined ? {} : { stopTokenId }),
      usage: {
        promptTokens: this.request.tokens.length,
        completionTokens: this.#told,
        cachedTokens: this.#cachedTokens,
      },
    };
    return { tokens, finish };
  }

  #leave(): void {
    const wasRunning = this.#state === "running";
    this.#state = "over";
    this.#signal.removeEventListener("abort", this.#onAbort);
    if (wasRunning) this.#owner.leave(this);
  }

  #settle(result: IteratorResult<TokenDelta>): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.resolve(result);
  }

  #takeFailure(): StatorError | undefined {
    const failure = this.#failure;
    this.#failure = undefined;
    return failure;
  }
}

import { StatorError } from "../../protocol/errors.ts";
import type { Finish, FinishReason, GenerateRequest, TokenDelta, TokenLogprob } from "../../protocol/generate.ts";

/** Bytes other than the echoed one have this natural logarithm of a probability. */
const UNLIKELY = -100;
/** Without pacing: tokens between two turns of the event loop. */
const TOKENS_PER_TURN = 64;
/** A reader that comes back late gets at most so many tokens at once; the pace starts anew from there. */
const MAX_BURST = 64;

/** Paced streams, woken together by one timer of the engine. */
export interface Pacer {
  readonly tokensPerSecond: number;
  readonly add: (stream: EchoStream) => void;
  readonly remove: (stream: EchoStream) => void;
}

/** One request: the prompt's bytes again and again. */
export class EchoStream implements AsyncIterableIterator<TokenDelta> {
  readonly #request: GenerateRequest;
  readonly #signal: AbortSignal;
  readonly #pacer: Pacer | undefined;
  readonly #begin: (stream: EchoStream) => void;
  readonly #onOver: (stream: EchoStream) => void;
  readonly #limit: number;
  readonly #stopTokens: ReadonlySet<number>;
  #state: "new" | "running" | "over" = "new";
  #cursor = 0;
  #made = 0;
  #startedAt = 0;
  #failure: StatorError | undefined;
  /** A `next()` that waits for its token to become due. */
  #waiting: { resolve: (result: IteratorResult<TokenDelta>) => void; reject: (reason: unknown) => void } | undefined;

  /** `begin` runs at the first `next()` and throws when the request is refused; `onOver` runs once if `begin` did not throw. */
  constructor(
    request: GenerateRequest,
    contextLength: number,
    signal: AbortSignal,
    pacer: Pacer | undefined,
    begin: (stream: EchoStream) => void,
    onOver: (stream: EchoStream) => void,
  ) {
    this.#request = request;
    this.#signal = signal;
    this.#pacer = pacer;
    this.#begin = begin;
    this.#onOver = onOver;
    this.#limit = Math.min(request.stop.maxTokens, contextLength - request.tokens.length);
    this.#stopTokens = new Set(request.stop.stopTokenIds);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<TokenDelta>> {
    if (this.#failure) return Promise.reject(this.#takeFailure());
    if (this.#state === "over") return Promise.resolve({ value: undefined, done: true });
    if (this.#state === "new") {
      try {
        this.#begin(this);
        this.#state = "running";
        this.#takeUp();
      } catch (thrown) {
        this.#leave();
        return Promise.reject(thrown);
      }
      this.#signal.addEventListener("abort", this.#onAbort);
    }
    if (this.#signal.aborted) return Promise.resolve({ value: this.#terminal("abort"), done: false });
    if (this.#made >= this.#limit) return Promise.resolve({ value: this.#terminal("length"), done: false });
    if (this.#pacer) {
      const due = this.#due(performance.now(), this.#pacer.tokensPerSecond);
      if (due > 0) return Promise.resolve({ value: this.#make(due), done: false });
      this.#pacer.add(this);
      return this.#wait();
    }
    if (this.#made > 0 && this.#made % TOKENS_PER_TURN === 0) {
      setImmediate(this.#deliverOne);
      return this.#wait();
    }
    return Promise.resolve({ value: this.#make(1), done: false });
  }

  /** The consumer has lost interest. */
  return(): Promise<IteratorResult<TokenDelta>> {
    this.#leave();
    this.#settle({ value: undefined, done: true });
    return Promise.resolve({ value: undefined, done: true });
  }

  /** Called by the pacer's timer. */
  wake(now: number, tokensPerSecond: number): void {
    if (!this.#waiting) return;
    const due = this.#due(now, tokensPerSecond);
    if (due === 0) return;
    this.#pacer?.remove(this);
    this.#settle({ value: this.#make(due), done: false });
  }

  /** The engine closes. */
  fail(error: StatorError): void {
    this.#leave();
    if (this.#waiting) this.#waiting.reject(error);
    else this.#failure = error;
    this.#waiting = undefined;
  }

  /** Goes over what another worker has made, which is what this one would have made. */
  #takeUp(): void {
    const generated = this.#request.generated ?? [];
    for (const token of generated) {
      if (this.#nextByte() !== token || (this.#made >= this.#request.stop.minTokens && this.#stopTokens.has(token))) {
        throw new StatorError("engine_error", "The generated tokens are not those of this prompt.");
      }
      this.#made++;
    }
    // The next token is due at once, as the first one of a new stream is.
    this.#startedAt = performance.now() - (this.#made * 1000) / (this.#pacer?.tokensPerSecond ?? 1);
  }

  #takeFailure(): StatorError | undefined {
    const failure = this.#failure;
    this.#failure = undefined;
    return failure;
  }

  readonly #deliverOne = (): void => {
    if (this.#state === "running" && this.#waiting) this.#settle({ value: this.#make(1), done: false });
  };

  readonly #onAbort = (): void => {
    // Without a waiting consumer the next `next()` or `return()` ends the stream; nothing runs meanwhile.
    if (this.#waiting) this.#settle({ value: this.#terminal("abort"), done: false });
  };

  #wait(): Promise<IteratorResult<TokenDelta>> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
  }

  #settle(result: IteratorResult<TokenDelta>): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.resolve(result);
  }

  /** Tokens whose time has come; the first is due at once. */
  #due(now: number, tokensPerSecond: number): number {
    const reached = Math.floor(((now - this.#startedAt) * tokensPerSecond) / 1000) + 1;
    const due = reached - this.#made;
    if (due <= MAX_BURST) return Math.max(0, due);
    this.#startedAt = now - (this.#made * 1000) / tokensPerSecond;
    return 1;
  }

  /** The next delta, with up to `count` tokens. */
  #make(count: number): TokenDelta {
    const tokens: number[] = [];
    while (tokens.length < count) {
      const token = this.#nextByte();
      if (this.#stopTokens.has(token)) return this.#terminal("stop", tokens, token);
      tokens.push(token);
      this.#made++;
      if (this.#made === this.#limit) return this.#terminal("length", tokens);
    }
    return this.#delta(tokens);
  }

  /** Before `minTokens`, stop tokens are passed over. */
  #nextByte(): number {
    const { tokens, stop } = this.#request;
    for (let tries = 0; tries < tokens.length; tries++) {
      const token = tokens[this.#cursor]!;
      this.#cursor = (this.#cursor + 1) % tokens.length;
      if (this.#made >= stop.minTokens || !this.#stopTokens.has(token)) return token;
    }
    let substitute = 0;
    while (this.#stopTokens.has(substitute)) substitute++;
    return substitute;
  }

  #terminal(reason: FinishReason, tokens: number[] = [], stopTokenId?: number): TokenDelta {
    const finish: Finish = {
      reason,
      ...(stopTokenId === undefined ? {} : { stopTokenId }),
      usage: { promptTokens: this.#request.tokens.length, completionTokens: this.#made, cachedTokens: 0 },
    };
    const delta = { ...this.#delta(tokens), finish };
    this.#leave();
    return delta;
  }

  #delta(tokens: number[]): TokenDelta {
    const { topLogprobs } = this.#request;
    const ids = Uint32Array.from(tokens);
    return topLogprobs === undefined
      ? { tokens: ids }
      : { tokens: ids, logprobs: tokens.map((id) => logprob(id, topLogprobs)) };
  }

  #leave(): void {
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.#pacer?.remove(this);
    if (this.#state === "running") {
      this.#state = "over";
      this.#onOver(this);
    }
    this.#state = "over";
  }
}

function logprob(token: number, count: number): TokenLogprob {
  const top = count === 0 ? [] : [{ token, logprob: 0 }];
  for (let other = 0; top.length < count; other++) if (other !== token) top.push({ token: other, logprob: UNLIKELY });
  return { logprob: 0, top };
}

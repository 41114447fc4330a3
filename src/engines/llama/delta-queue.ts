import type { Finish, StatorError, TokenDelta, TokenLogprob } from "../../protocol/index.ts";

/** Tokens that may wait for a slow consumer before its sequence pauses. */
const capacity = 512;

/**
 * Between a running sequence (one producer) and its consumer. Tokens that are ready together leave as one delta. When
 * the consumer is slow the producer waits, so memory is bounded.
 */
export class DeltaQueue {
  private tokens: number[] = [];
  private logprobs: TokenLogprob[] = [];
  private isAlive = false;
  private finish: Finish | undefined;
  private error: StatorError | undefined;
  private wakeConsumer: (() => void) | undefined;
  private wakeProducer: (() => void) | undefined;

  push(token: number, logprob: TokenLogprob | undefined): void {
    this.tokens.push(token);
    if (logprob !== undefined) this.logprobs.push(logprob);
    this.notifyConsumer();
  }

  /** There is progress but no token: a consumer that waits gets an empty delta. */
  alive(): void {
    if (this.wakeConsumer === undefined) return;
    this.isAlive = true;
    this.notifyConsumer();
  }

  end(finish: Finish): void {
    this.finish = finish;
    this.notifyConsumer();
  }

  fail(error: StatorError): void {
    this.error = error;
    this.notifyConsumer();
  }

  get isFull(): boolean {
    return this.tokens.length >= capacity;
  }

  /** Resolves when there is room, or at {@link releaseProducer}. */
  room(): Promise<void> {
    return this.isFull ? new Promise((resolve) => (this.wakeProducer = resolve)) : Promise.resolve();
  }

  /** Lets a waiting producer go on, so that it sees its abort flag. */
  releaseProducer(): void {
    const wake = this.wakeProducer;
    this.wakeProducer = undefined;
    wake?.();
  }

  /** The next delta. Throws what the producer failed with. One caller at a time; none after the delta with `finish`. */
  async pull(): Promise<TokenDelta> {
    while (this.tokens.length === 0 && !this.isAlive && this.finish === undefined && this.error === undefined) {
      await new Promise<void>((resolve) => (this.wakeConsumer = resolve));
    }
    if (this.tokens.length === 0 && this.error !== undefined) throw this.error;
    const delta: TokenDelta = {
      tokens: Uint32Array.from(this.tokens),
      ...(this.logprobs.length === 0 ? {} : { logprobs: this.logprobs }),
      ...(this.finish === undefined ? {} : { finish: this.finish }),
    };
    this.isAlive = false;
    this.tokens = [];
    if (this.logprobs.length > 0) this.logprobs = [];
    this.releaseProducer();
    return delta;
  }

  private notifyConsumer(): void {
    const wake = this.wakeConsumer;
    this.wakeConsumer = undefined;
    wake?.();
  }
}

import { StatorError, type TokenDelta } from "../../protocol/index.ts";
import { DeltaQueue } from "./delta-queue.ts";

/**
 * Starts the work of a request. Throws when it cannot; otherwise `ended` resolves after the last delta is in `output`
 * and the sequence is free.
 */
export type StartWork = (output: DeltaQueue, stop: AbortSignal) => Promise<{ readonly ended: Promise<void> }>;

/**
 * The stream of one request. Work begins at the first `next()` and goes on by itself; it stops at the end, when the
 * caller's signal or the engine's closing aborts, and at `return()`. So it never depends on somebody pulling.
 */
export class Generation implements AsyncIterableIterator<TokenDelta> {
  readonly output = new DeltaQueue();
  private readonly stop = new AbortController();
  private readonly startWork: StartWork;
  private readonly signals: readonly AbortSignal[];
  private work: Promise<{ readonly ended: Promise<void> }> | undefined;
  private done = false;

  constructor(startWork: StartWork, ...signals: readonly AbortSignal[]) {
    this.startWork = startWork;
    this.signals = signals;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<TokenDelta, undefined>> {
    if (this.done) return { done: true, value: undefined };
    try {
      this.work ??= this.begin();
      await this.work;
      const value = await this.output.pull();
      if (value.finish !== undefined) this.done = true;
      return { done: false, value };
    } catch (error) {
      this.done = true;
      throw error;
    }
  }

  async return(): Promise<IteratorResult<TokenDelta, undefined>> {
    this.done = true;
    this.abort();
    const started = await this.work?.catch(() => undefined);
    await started?.ended;
    return { done: true, value: undefined };
  }

  private async begin(): Promise<{ readonly ended: Promise<void> }> {
    for (const signal of this.signals) {
      if (signal.aborted) this.abort();
      signal.addEventListener("abort", this.abort);
    }
    let started: { readonly ended: Promise<void> } | undefined;
    try {
      started = await this.startWork(this.output, this.stop.signal);
      return started;
    } catch (cause) {
      throw cause instanceof StatorError
        ? cause
        : new StatorError("engine_error", "The engine failed to start this request.", { cause });
    } finally {
      if (started === undefined) this.unlisten();
      else void started.ended.finally(this.unlisten);
    }
  }

  private readonly abort = (): void => {
    this.stop.abort();
    this.output.releaseProducer();
  };

  private readonly unlisten = (): void => {
    for (const signal of this.signals) signal.removeEventListener("abort", this.abort);
  };
}

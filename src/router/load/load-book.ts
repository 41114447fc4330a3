/** Which load each worker carries right now, as this process has booked it. One owner: the router. */
export class LoadBook {
  readonly #loads = new Map<string, WorkerLoad>();

  /** Books one request in the same tick as its selection. The handle is closed exactly once, after the last byte. */
  book(workerId: string, promptTokens: number): BookedLoad {
    let load = this.#loads.get(workerId);
    if (load === undefined) {
      load = { requests: 0, promptTokens: 0 };
      this.#loads.set(workerId, load);
    }
    load.requests += 1;
    load.promptTokens += promptTokens;
    return new BookedLoad(() => this.#release(workerId, promptTokens));
  }

  /** Requests booked on the worker. */
  requests(workerId: string): number {
    return this.#loads.get(workerId)?.requests ?? 0;
  }

  /** Prompt tokens of the requests booked on the worker. */
  promptTokens(workerId: string): number {
    return this.#loads.get(workerId)?.promptTokens ?? 0;
  }

  #release(workerId: string, promptTokens: number): void {
    const load = this.#loads.get(workerId);
    if (load === undefined) return;
    load.requests -= 1;
    load.promptTokens -= promptTokens;
    if (load.requests === 0) this.#loads.delete(workerId);
  }
}

interface WorkerLoad {
  requests: number;
  promptTokens: number;
}

/** A booking. `release` may be called again; only the first call counts. */
export class BookedLoad {
  #release: (() => void) | undefined;

  constructor(release: () => void) {
    this.#release = release;
  }

  release(): void {
    this.#release?.();
    this.#release = undefined;
  }
}

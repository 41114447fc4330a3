import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";

export interface Flushable {
  flush(): void;
  /** Told when `flush` threw. Must not throw. */
  flushFailed(thrown: unknown): void;
}

/**
 * Collects what has something to write, so that each stream writes once for all tokens that arrived together. It never
 * waits for more: it flushes at the end of the plane's batch.
 */
export class FlushQueue {
  #dirty: Flushable[] = [];
  readonly #unsubscribe: () => void;

  constructor(plane: RequestPlaneClient) {
    this.#unsubscribe = plane.onBatchEnd(() => this.flush());
  }

  /** `item` is flushed once, soon; the caller keeps it from being added twice before that. */
  add(item: Flushable): void {
    this.#dirty.push(item);
  }

  /** Only needed for what happened outside a batch of the plane: a timer. */
  flush(): void {
    while (this.#dirty.length > 0) {
      const batch = this.#dirty;
      this.#dirty = [];
      for (let i = 0; i < batch.length; i++) {
        // One answer that cannot be written must not take the others along.
        try {
          batch[i]!.flush();
        } catch (thrown) {
          batch[i]!.flushFailed(thrown);
        }
      }
    }
  }

  close(): void {
    this.#unsubscribe();
  }
}

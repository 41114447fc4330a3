import type { EngineHealth } from "../protocol/engine.ts";
import { StatorError } from "../protocol/errors.ts";

/**
 * What an engine runs, and how it comes to rest: the same for every engine that keeps an object for each of its requests.
 *
 *   accepting --drain()--> draining: refuses, goes on with what runs
 *       +---------close()------+--> closed
 */
export class RunningRequests<Item> implements Iterable<Item> {
  readonly #items = new Set<Item>();
  readonly #waiting = new Set<() => void>();
  #state: "ready" | "draining" | "closed" = "ready";

  get size(): number {
    return this.#items.size;
  }

  get isDraining(): boolean {
    return this.#state !== "ready";
  }

  get isClosed(): boolean {
    return this.#state === "closed";
  }

  /** What a liveness probe hears when nothing else is wrong. */
  get health(): EngineHealth {
    return this.#state === "closed" ? { state: "unhealthy", reason: "closed" } : { state: this.#state };
  }

  /** Throws `draining` when new requests are refused. */
  assertAccepting(): void {
    if (this.isDraining) throw new StatorError("draining", "The engine takes no new requests.");
  }

  /** Throws like `assertAccepting`. */
  add(item: Item): void {
    this.assertAccepting();
    this.#items.add(item);
  }

  /** Idempotent. */
  remove(item: Item): void {
    if (!this.#items.delete(item) || this.#items.size > 0) return;
    for (const resolve of this.#waiting) resolve();
  }

  /** Refuses new ones; resolves when none is left or `signal` aborts. */
  async drain(signal: AbortSignal): Promise<void> {
    if (this.#state === "ready") this.#state = "draining";
    if (this.#items.size === 0 || signal.aborted) return;
    await new Promise<void>((resolve) => {
      const go = (): void => {
        this.#waiting.delete(go);
        signal.removeEventListener("abort", go);
        resolve();
      };
      this.#waiting.add(go);
      signal.addEventListener("abort", go);
    });
  }

  /** Refuses new ones for good. Gives what still runs, for the engine to end. */
  close(): readonly Item[] {
    this.#state = "closed";
    return [...this.#items];
  }

  [Symbol.iterator](): Iterator<Item> {
    return this.#items.values();
  }
}

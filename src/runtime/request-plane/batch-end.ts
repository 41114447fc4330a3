/** Tells listeners that a batch of messages has been delivered. One per client. */
export class BatchEnd {
  readonly #listeners = new Set<() => void>();
  #scheduled = false;

  add(listener: () => void): () => void {
    const entry = (): void => listener(); // the same function may subscribe twice
    this.#listeners.add(entry);
    return () => this.#listeners.delete(entry);
  }

  /** Now: the caller has just delivered a batch. */
  notify(): void {
    for (const listener of this.#listeners) listener();
  }

  /** Once, later in this turn of the event loop: for single deliveries outside a batch. */
  notifySoon(): void {
    if (this.#scheduled || this.#listeners.size === 0) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.notify();
    });
  }
}

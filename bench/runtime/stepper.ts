import { MESSAGE_BYTES, type StreamPlan } from "./plan.js";

/** One stream to write to: true = it takes more, false = not before `stepper.unblock`. */
export interface Writer {
  write(message: Buffer): boolean;
  end(): void;
}

interface Entry {
  readonly writer: Writer;
  readonly endAtMs: number;
  readonly paceMs: number;
  nextAtMs: number;
  isBlocked: boolean;
}

/**
 * Writes to all streams as an engine does that computes them in one batch: a message for each of them, then the next
 * round. The same for every kind of server.
 */
export class Stepper {
  readonly #entries = new Set<Entry>();
  #isScheduled = false;

  /** Returns how to tell that the writer takes more again. */
  add(writer: Writer, plan: StreamPlan): () => void {
    const now = performance.now();
    const nextAtMs = now + Math.random() * plan.paceMs; // paced streams do not move in step
    const entry = { writer, endAtMs: now + plan.durationMs, paceMs: plan.paceMs, nextAtMs, isBlocked: false };
    this.#entries.add(entry);
    this.#schedule(plan.paceMs);
    return () => {
      entry.isBlocked = false;
      this.#schedule(plan.paceMs);
    };
  }

  #schedule(paceMs: number): void {
    if (this.#isScheduled || this.#entries.size === 0) return;
    this.#isScheduled = true;
    if (paceMs > 0) setTimeout(this.#step, 1);
    else setImmediate(this.#step);
  }

  readonly #step = (): void => {
    this.#isScheduled = false;
    const now = performance.now();
    let paceMs = 0;
    let anyFree = false;
    for (const entry of this.#entries) {
      paceMs = entry.paceMs;
      if (now >= entry.endAtMs) {
        this.#entries.delete(entry);
        entry.writer.end();
      } else if (!entry.isBlocked && now >= entry.nextAtMs) {
        entry.nextAtMs += entry.paceMs;
        entry.isBlocked = !entry.writer.write(Buffer.allocUnsafe(MESSAGE_BYTES));
        anyFree ||= !entry.isBlocked;
      }
    }
    // All blocked: `unblock` goes on. The end of time must be noticed all the same.
    if (anyFree || paceMs > 0) this.#schedule(paceMs);
    else if (this.#entries.size > 0) setTimeout(() => this.#schedule(paceMs), 1);
  };
}

import { StatorError } from "../../protocol/errors.ts";

/** Decides whether one more request may come in. One per frontend. */
export class Admission {
  readonly #maxInFlight: number;
  #inFlight = 0;
  #draining = false;
  #onIdle: (() => void)[] = [];

  constructor(maxInFlight: number) {
    this.#maxInFlight = maxInFlight;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Throws `draining` or `overloaded`. The ticket is closed once, after the last byte of the answer. */
  enter(): AdmissionTicket {
    if (this.#draining) {
      throw new StatorError("draining", "The server is shutting down.", { retryAfterSeconds: 1 });
    }
    if (this.#inFlight >= this.#maxInFlight) {
      throw new StatorError("overloaded", `All ${this.#maxInFlight} places for requests are taken (http.maxStreams).`, {
        retryAfterSeconds: 1,
      });
    }
    this.#inFlight++;
    let open = true;
    return {
      close: () => {
        if (!open) return;
        open = false;
        this.#inFlight--;
        if (this.#inFlight === 0) for (const resolve of this.#onIdle.splice(0)) resolve();
      },
    };
  }

  /** From now on nothing comes in. */
  startDraining(): void {
    this.#draining = true;
  }

  /** Resolves with true when nothing is in flight, with false when `signal` aborts before that. */
  async idle(signal: AbortSignal): Promise<boolean> {
    if (this.#inFlight === 0) return true;
    if (signal.aborted) return false;
    return await new Promise((resolve) => {
      const onAbort = (): void => resolve(false);
      signal.addEventListener("abort", onAbort, { once: true });
      this.#onIdle.push(() => {
        signal.removeEventListener("abort", onAbort);
        resolve(true);
      });
    });
  }
}

export interface AdmissionTicket {
  /** Idempotent. */
  close(): void;
}

/** Deltas of all streams together between two turns of the event loop. */
const DELTAS_PER_TURN = 256;

/**
 * Engines that never wait would keep the event loop in their promises for ever, and cancel frames, heartbeats and other
 * streams outside. All streams of a host share this budget; who finds it used up waits for the next turn.
 */
export class TurnBudget {
  #left = DELTAS_PER_TURN;
  #nextTurn: Promise<void> | undefined;

  /** Counts one delta. Undefined = go on; else wait first. */
  spend(): Promise<void> | undefined {
    if (--this.#left > 0) {
      if (this.#left === DELTAS_PER_TURN - 1) void this.#renew();
      return undefined;
    }
    return this.#nextTurn ?? this.#renew();
  }

  #renew(): Promise<void> {
    this.#nextTurn ??= new Promise((resolve) => {
      setImmediate(() => {
        this.#left = DELTAS_PER_TURN;
        this.#nextTurn = undefined;
        resolve();
      });
    });
    return this.#nextTurn;
  }
}

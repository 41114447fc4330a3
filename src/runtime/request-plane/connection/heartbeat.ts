import type { Deadline, TimerWheel } from "../../lifecycle/timer-wheel.ts";

export interface HeartbeatTimes {
  /** Default 2.5 s. */
  readonly pingIntervalMs: number;
  /** Silence after which the peer counts as dead, rounded up to whole intervals. Default 10 s. */
  readonly deadAfterMs: number;
}

export const defaultHeartbeat: HeartbeatTimes = { pingIntervalMs: 2500, deadAfterMs: 10_000 };

/**
 * Pings the peer once per interval and gives it up when it stays silent. It counts unanswered pings instead of comparing clocks: a
 * process that was itself suspended or blocked for long finds one ping missing, not a dead peer.
 */
export class Heartbeat {
  readonly #times: HeartbeatTimes;
  readonly #wheel: TimerWheel;
  readonly #ping: () => void;
  readonly #onDead: () => void;
  #deadline: Deadline | undefined;
  #heard = true;
  #unanswered = 0;

  constructor(times: HeartbeatTimes, wheel: TimerWheel, ping: () => void, onDead: () => void) {
    this.#times = times;
    this.#wheel = wheel;
    this.#ping = ping;
    this.#onDead = onDead;
  }

  start(): void {
    this.#deadline ??= this.#wheel.schedule(this.#times.pingIntervalMs, this.#beat);
  }

  stop(): void {
    this.#deadline?.cancel();
    this.#deadline = undefined;
  }

  /** Any byte from the peer. */
  heard(): void {
    this.#heard = true;
  }

  readonly #beat = (): void => {
    this.#deadline = undefined;
    if (this.#heard) {
      this.#heard = false;
      this.#unanswered = 0;
    }
    if (this.#unanswered * this.#times.pingIntervalMs >= this.#times.deadAfterMs) {
      this.#onDead();
      return;
    }
    this.#unanswered++;
    this.#ping();
    this.start();
  };
}

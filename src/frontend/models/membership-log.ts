import type { Logger } from "pino";

/** Lines of a kind in one period; what comes beyond is told in one line at its end. */
const MOST = 20;
const PERIOD_MS = 1_000;

/** Workers that come and go, in the log: one line each, unless thousands do so at once. */
export class MembershipLog {
  readonly #logger: Logger;
  readonly #further = { joined: 0, left: 0 };
  readonly #told = { joined: 0, left: 0 };
  #timer: NodeJS.Timeout | undefined;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  joined(worker: { readonly workerId: string; readonly model: string; readonly address: string }): void {
    this.#tell("joined", worker);
  }

  left(worker: { readonly workerId: string; readonly model: string }): void {
    this.#tell("left", worker);
  }

  /** Tells what there still is to tell. */
  close(): void {
    clearTimeout(this.#timer);
    this.#endPeriod();
  }

  #tell(what: "joined" | "left", worker: object): void {
    this.#timer ??= setTimeout(this.#endPeriod, PERIOD_MS).unref();
    if (this.#told[what]++ < MOST) this.#logger.info(worker, `worker ${what}`);
    else this.#further[what]++;
  }

  readonly #endPeriod = (): void => {
    this.#timer = undefined;
    for (const what of ["joined", "left"] as const) {
      const workers = this.#further[what];
      if (workers > 0) this.#logger.info({ workers }, `further workers ${what}`);
      this.#further[what] = 0;
      this.#told[what] = 0;
    }
  };
}

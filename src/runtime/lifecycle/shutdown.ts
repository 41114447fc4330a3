/*
 *   running --run()--> stopping ------> draining -----------> closing ------> closed
 *                      stop accepting   work goes on until    end what is
 *                      and unregister   it is done, or the    left
 *                                       deadline, or hurry()
 */

export type ShutdownPhase = "running" | "stopping" | "draining" | "closing" | "closed";

export interface ShutdownSteps {
  /** Refuse new work and leave discovery. */
  stopAccepting(): Promise<void> | void;
  /** Resolves when nothing runs any more; gives up when `signal` aborts. */
  drain(signal: AbortSignal): Promise<void>;
  /** Ends at once whatever is left. */
  close(): Promise<void> | void;
}

export interface ShutdownOptions {
  readonly drainTimeoutMs: number;
  /** For the first and for the last phase, each. Default 5 s. */
  readonly stepTimeoutMs?: number;
  readonly onPhase?: (phase: ShutdownPhase) => void;
}

export interface ShutdownOutcome {
  /** All work was done before the deadline. */
  readonly drained: boolean;
  /** What the steps threw, and which of them did not end in time. */
  readonly problems: readonly unknown[];
}

/** Three phases, each bounded in time; a step that fails or hangs never keeps the next one from running. */
export class Shutdown {
  readonly #steps: ShutdownSteps;
  readonly #options: ShutdownOptions;
  readonly #hurry = new AbortController();
  #phase: ShutdownPhase = "running";
  #outcome: Promise<ShutdownOutcome> | undefined;

  constructor(steps: ShutdownSteps, options: ShutdownOptions) {
    this.#steps = steps;
    this.#options = options;
  }

  get phase(): ShutdownPhase {
    return this.#phase;
  }

  /** Starts the shutdown, or joins the one under way. Never rejects. */
  run(): Promise<ShutdownOutcome> {
    this.#outcome ??= this.#run();
    return this.#outcome;
  }

  /** Ends the drain phase now (the second Ctrl-C). */
  hurry(): void {
    this.#hurry.abort();
  }

  async #run(): Promise<ShutdownOutcome> {
    const { drainTimeoutMs, stepTimeoutMs = 5000 } = this.#options;
    const problems: unknown[] = [];
    const step = async (phase: ShutdownPhase, timeoutMs: number, work: (signal: AbortSignal) => unknown) => {
      this.#enter(phase);
      const failed = await bounded(phase, timeoutMs, phase === "draining" ? this.#hurry.signal : undefined, work);
      if (failed !== undefined) problems.push(failed);
      return failed === undefined;
    };
    await step("stopping", stepTimeoutMs, () => this.#steps.stopAccepting());
    const drained = await step("draining", drainTimeoutMs, (signal) => this.#steps.drain(signal));
    await step("closing", stepTimeoutMs, () => this.#steps.close());
    this.#enter("closed");
    return { drained, problems };
  }

  #enter(phase: ShutdownPhase): void {
    this.#phase = phase;
    this.#options.onPhase?.(phase);
  }
}

/** Runs one step; resolves with what went wrong, or undefined. */
async function bounded(
  phase: ShutdownPhase,
  timeoutMs: number,
  hurry: AbortSignal | undefined,
  work: (signal: AbortSignal) => unknown,
): Promise<unknown> {
  const controller = new AbortController();
  const { promise: cutShort, resolve: cut } = withResolvers<unknown>();
  const stop = (why: string): void => {
    const error = new Error(`Shutdown phase "${phase}" ${why}.`);
    controller.abort(error);
    cut(error);
  };
  const onHurry = (): void => stop("was cut short");
  const timer = setTimeout(() => stop(`did not end within ${timeoutMs} ms`), timeoutMs);
  hurry?.addEventListener("abort", onHurry, { once: true });
  if (hurry?.aborted) onHurry();
  try {
    const worked = Promise.resolve()
      .then(() => work(controller.signal))
      .then(
        () => (controller.signal.aborted ? controller.signal.reason : undefined),
        (thrown: unknown) => thrown ?? new Error(`Shutdown phase "${phase}" failed.`),
      );
    return await Promise.race([worked, cutShort]);
  } finally {
    clearTimeout(timer);
    hurry?.removeEventListener("abort", onHurry);
  }
}

/** Promise.withResolvers, which Node 20 does not have. */
function withResolvers<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

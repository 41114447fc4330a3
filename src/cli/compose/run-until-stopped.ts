import type { Frontend } from "../../frontend/frontend.ts";
import { Shutdown } from "../../runtime/lifecycle/shutdown.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { onStopSignals } from "./stop-signals.ts";

export interface StoppableService {
  readonly frontend: Frontend;
  readonly logger: Logger;
  readonly drainTimeoutMs: number;
  /** Everything up to the start screen; gives up when `signal` aborts. */
  start(signal: AbortSignal): Promise<void>;
  /** Ends what is left: streams get their error frame. `hurried`: somebody waits at the terminal. */
  close(hurried: boolean): Promise<void>;
  /** The last resort, synchronous: no process and no folder may stay behind. */
  kill(): void;
}

/** Exit code after a second Ctrl-C, as shells have it. */
const EXIT_INTERRUPTED = 130;
/** Longest close phase. */
const CLOSE_TIMEOUT_MS = 10_000;

/**
 * Runs a service until a signal comes, then shuts it down in three phases. A second signal ends the drain phase, a third
 * one everything.
 */
export async function runUntilStopped(service: StoppableService): Promise<void> {
  const { frontend, logger, drainTimeoutMs } = service;
  const stopped = new AbortController();
  const whenStopped = new Promise<void>((resolve) => stopped.signal.addEventListener("abort", () => resolve()));
  let hurried = false;
  const shutdown = new Shutdown(
    {
      stopAccepting: () => {},
      drain: async (signal) => {
        await frontend.drain(signal);
      },
      close: () => service.close(hurried),
    },
    { drainTimeoutMs, stepTimeoutMs: CLOSE_TIMEOUT_MS },
  );
  const ignoreSignals = onStopSignals((count, signal) => {
    if (count === 1) {
      const inFlight = frontend.inFlight;
      logger.info({ signal, inFlight }, "stopping: running answers may finish; Ctrl-C again stops at once");
      stopped.abort();
    } else if (count === 2) {
      hurried = true;
      process.exitCode = EXIT_INTERRUPTED;
      shutdown.hurry();
    } else {
      service.kill();
      process.exit(EXIT_INTERRUPTED);
    }
  });
  try {
    await service.start(stopped.signal);
    await whenStopped;
    const { drained } = await shutdown.run();
    logger.info({ drained }, "stopped");
  } finally {
    ignoreSignals();
  }
}

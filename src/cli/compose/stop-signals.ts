import { constants } from "node:os";

/** One Ctrl-C can arrive twice: from the terminal, and passed on by npm. A second one within this time is the same one. */
const SAME_SIGNAL_MS = 300;

/** Calls `onSignal` with 1 for the first of the signals, 2 for the next, and so on. Returns the way to stop listening. */
export function onStopSignals(
  onSignal: (count: number, signal: NodeJS.Signals) => void,
  signals: readonly NodeJS.Signals[] = ["SIGINT", "SIGTERM", "SIGHUP"],
): () => void {
  let count = 0;
  let lastAt = Number.NEGATIVE_INFINITY;
  let lastSignal: NodeJS.Signals | undefined;
  const listener = (signal: NodeJS.Signals): void => {
    const now = performance.now();
    if (signal === lastSignal && now - lastAt < SAME_SIGNAL_MS) return;
    lastAt = now;
    lastSignal = signal;
    onSignal(++count, signal);
  };
  for (const signal of signals) process.on(signal, listener);
  return () => {
    for (const signal of signals) process.removeListener(signal, listener);
  };
}

/**
 * Ends this process as the signal does when nobody listens. The first process of a container is spared that, so it ends
 * itself.
 */
export function dieOf(signal: NodeJS.Signals): void {
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  setImmediate(() => process.exit(128 + constants.signals[signal]));
}

import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { afterAll } from "vitest";

const program = fileURLToPath(new URL("./event-worker.mjs", import.meta.url));
const running = new Set<ChildProcess>();
afterAll(() => {
  for (const child of running) child.kill("SIGKILL");
});

export interface EventWorkerOptions {
  readonly folder: string;
  readonly workerId: string;
  readonly epoch: string;
  /** Default: zmq. */
  readonly nats?: string;
}

/** A process that publishes events and is known to file discovery; see `event-worker.mjs`. */
export class EventWorker {
  readonly #child: ChildProcess;

  static async start(options: EventWorkerOptions): Promise<EventWorker> {
    const child = fork(program, [JSON.stringify(options)]);
    running.add(child);
    child.once("exit", () => running.delete(child));
    await answer(child);
    return new EventWorker(child);
  }

  private constructor(child: ChildProcess) {
    this.#child = child;
  }

  /** So many events in one tick of the worker. */
  async publish(count: number): Promise<void> {
    const done = answer(this.#child);
    this.#child.send({ publish: count });
    await done;
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  async kill(): Promise<void> {
    const exit = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await exit;
  }
}

/** Rejects when the child ends, or takes too long. */
async function answer(child: ChildProcess): Promise<void> {
  const stop = new AbortController();
  const ended = once(child, "exit", { signal: stop.signal }).then(() => {
    throw new Error("the event worker ended");
  });
  ended.catch(() => {}); // also when the answer comes first
  try {
    await Promise.race([
      once(child, "message", { signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) }),
      ended,
    ]);
  } finally {
    stop.abort();
  }
}

import { Worker } from "node:worker_threads";
import type { EtcdClientOptions } from "./etcd-client.ts";
import type { LeaseNews } from "./lease-loop.ts";

const STOP_TIMEOUT_MS = 3_000;
const RESTART_MS = 1_000;

/** One lease of this process, kept alive by a thread of its own. A thread that fails is replaced. */
export class LeaseKeeper {
  readonly #options: { client: EtcdClientOptions; ttlSeconds: number };
  readonly #onNews: (news: LeaseNews) => void;
  #thread: Worker | undefined;
  #exited: Promise<void> = Promise.resolve();
  #restart: NodeJS.Timeout | undefined;
  #stopping: Promise<void> | undefined;

  constructor(client: EtcdClientOptions, ttlSeconds: number, onNews: (news: LeaseNews) => void) {
    this.#options = { client, ttlSeconds };
    this.#onNews = onNews;
    this.#start();
  }

  /** Revokes the lease. Idempotent, never rejects, takes at most 3 s. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  #start(): void {
    const thread = new Worker(threadUrl(), { workerData: this.#options });
    this.#thread = thread;
    thread.unref();
    thread.on("message", (news: LeaseNews) => {
      if (this.#stopping === undefined) this.#onNews(news);
    });
    thread.on("error", (error) => {
      this.#onNews({ kind: "trouble", reason: `the lease thread failed: ${String(error)}` });
    });
    this.#exited = new Promise((resolve) => {
      thread.once("exit", () => {
        resolve();
        if (this.#stopping === undefined) this.#restart = setTimeout(() => this.#start(), RESTART_MS).unref();
      });
    });
  }

  async #stop(): Promise<void> {
    clearTimeout(this.#restart);
    this.#thread?.ref();
    this.#thread?.postMessage("stop");
    const timer = setTimeout(() => void this.#thread?.terminate(), STOP_TIMEOUT_MS);
    await this.#exited;
    clearTimeout(timer);
  }
}

/** Node 20 cannot run TypeScript in a thread, so from the sources (tests) the built file is used. */
function threadUrl(): URL {
  const built = import.meta.url.endsWith(".ts") ? "../../../../dist/runtime/discovery/etcd/" : "./";
  return new URL(`${built}lease-thread.js`, import.meta.url);
}

import { setTimeout as delay } from "node:timers/promises";
import type { Logger } from "pino";
import { instanceKey } from "../../../protocol/instance.ts";
import { Backoff } from "../../lifecycle/backoff.ts";
import { WatchFeed } from "../watch-feed.ts";
import type { EtcdClient, WatchEvent } from "./etcd-client.ts";
import { readValue } from "./layout.ts";

export interface PrefixWatcherOptions {
  readonly client: EtcdClient;
  readonly prefix: string;
  /** The prefix of all instances: keys without it are instance keys. */
  readonly base: string;
  /** Workers have so long to register again after the store was away, before they count as gone. */
  readonly graceMs: number;
  readonly logger: Logger | undefined;
}

/** A store that does not answer in this time is in trouble. */
const PROBE_TIMEOUT_MS = 2_000;
const PROBE_EVERY_MS = 2_000;
/** A watch whose connection has died without a word is replaced after so long. */
const WATCH_MS = 30_000;

/**
 * Keeps a {@link WatchFeed} in step with the keys under one prefix: reads all, then follows the changes. Whenever the
 * stream breaks it reads all again and tells the difference. A store that cannot be reached freezes the picture, and for
 * `graceMs` after it is back nobody is removed, because the workers may only just be registering again.
 */
export class PrefixWatcher {
  readonly feed = new WatchFeed();
  readonly #options: PrefixWatcherOptions;
  readonly #stop = new AbortController();
  readonly #running: Promise<void>;
  #graceUntilMs = 0;
  /** Removals that wait for the end of the grace time. */
  #pending = false;

  constructor(options: PrefixWatcherOptions) {
    this.#options = options;
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.feed.close();
    this.#stop.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    const backoff = new Backoff({ initialMs: 100, maxMs: 2_000 });
    while (!signal.aborted) {
      try {
        const revision = await this.#readAll(signal);
        backoff.reset();
        await this.#follow(revision + 1n, signal);
      } catch (error) {
        if (signal.aborted) return;
        const reason = (error as Error).message;
        // A stream that breaks once is no trouble; one that cannot be had again is.
        if (backoff.failures > 0) this.feed.trouble(reason);
        this.#graceUntilMs = Number.POSITIVE_INFINITY;
        await delay(backoff.nextDelayMs(), undefined, { signal }).catch(() => {});
      }
    }
  }

  /** The revision of the picture. */
  async #readAll(signal: AbortSignal): Promise<bigint> {
    const { client, prefix } = this.#options;
    const { items, revision } = await client.range(prefix, signal);
    if (this.#graceUntilMs === Number.POSITIVE_INFINITY) {
      this.#graceUntilMs = performance.now() + this.#options.graceMs;
    }
    const present = new Set<string>();
    for (const { key, value } of items) {
      present.add(this.#instanceKey(key));
      this.#put(key, value);
    }
    this.#pending = false;
    for (const key of [...this.feed.records.keys()]) if (!present.has(key)) this.#remove(key);
    this.feed.trouble(undefined);
    this.feed.synced();
    return revision;
  }

  /** Until the stream breaks, the store falls silent, or removals are due. */
  async #follow(from: bigint, signal: AbortSignal): Promise<void> {
    const { client, prefix } = this.#options;
    let next = from;
    while (!signal.aborted) {
      const turn = new AbortController();
      const both = AbortSignal.any([signal, turn.signal]);
      const watch = client.watch(
        prefix,
        next,
        (events, revision) => {
          next = revision + 1n;
          for (const event of events) this.#apply(event);
        },
        both,
      );
      // A rejection is dealt with below, also when the probe fails first.
      watch.catch(() => {});
      try {
        const outcome = await Promise.race([watch, this.#probe(both)]);
        if (outcome === "read again") return;
      } finally {
        turn.abort();
        await watch.catch(() => {});
      }
    }
  }

  /** Rejects when the store does not answer; resolves when it is time for another watch or another look at everything. */
  async #probe(signal: AbortSignal): Promise<"watch again" | "read again"> {
    const { client, prefix } = this.#options;
    const endsAtMs = performance.now() + WATCH_MS;
    while (performance.now() < endsAtMs && !signal.aborted) {
      await delay(PROBE_EVERY_MS, undefined, { signal }).catch(() => {});
      if (signal.aborted) break;
      await client.get(prefix, AbortSignal.any([signal, AbortSignal.timeout(PROBE_TIMEOUT_MS)]));
      if (this.#pending && performance.now() >= this.#graceUntilMs) return "read again";
    }
    return "watch again";
  }

  #apply(event: WatchEvent): void {
    if (event.type === "put") this.#put(event.item.key, event.item.value);
    else this.#remove(this.#instanceKey(event.key));
  }

  #put(key: string, value: string): void {
    const record = readValue(value);
    if (typeof record === "string" || instanceKey(record) !== this.#instanceKey(key)) {
      const problem = typeof record === "string" ? record : "its key does not belong to its worker id";
      // What was known of it stays: a garbled value says nothing about the worker.
      this.#options.logger?.warn({ key, problem }, "skipped a key in etcd");
      return;
    }
    this.feed.upsert(record);
  }

  #remove(key: string): void {
    if (performance.now() >= this.#graceUntilMs) this.feed.remove(key);
    else this.#pending = true;
  }

  #instanceKey(key: string): string {
    return key.slice(this.#options.base.length);
  }
}

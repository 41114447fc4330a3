import type { Logger } from "pino";
import { StatorError } from "../../../protocol/errors.ts";
import type { InstanceRecord } from "../../../protocol/instance.ts";
import { Backoff } from "../../lifecycle/backoff.ts";
import type { Discovery, DiscoveryListener, Lease, Scope, Watch } from "../discovery.ts";
import { EtcdClient, type EtcdClientOptions } from "./etcd-client.ts";
import { prefixOf } from "./layout.ts";
import { LeaseKeeper } from "./lease-keeper.ts";
import type { LeaseNews } from "./lease-loop.ts";
import { PrefixWatcher } from "./prefix-watcher.ts";
import { Registration } from "./registration.ts";

export interface EtcdDiscoveryOptions {
  readonly client: EtcdClientOptions;
  /** First segment of all keys. Default `stator`. */
  readonly root?: string;
  /** A process that is gone is gone from the store after so long. Default 10, at least 2. */
  readonly ttlSeconds?: number;
  /** `register` gives up after so long without etcd. Default 30 s. */
  readonly startTimeoutMs?: number;
  readonly logger?: Logger;
}

const WRITE_TIMEOUT_MS = 5_000;

/** Registrations that are verified every time; of more, a part. */
const VERIFIED_AT_ONCE = 32;
const VERIFY_ROUNDS = 12;

/**
 * Discovery over etcd. All records of this process hang on one lease, which a thread of its own keeps alive. When the
 * lease is lost (etcd was away for too long, or lost its data), everything is registered again under a new one.
 */
export class EtcdDiscovery implements Discovery {
  readonly #options: EtcdDiscoveryOptions;
  readonly #root: string;
  readonly #ttlSeconds: number;
  readonly #client: EtcdClient;
  readonly #registrations = new Set<Registration>();
  readonly #watchers = new Map<string, PrefixWatcher>();
  readonly #stop = new AbortController();
  readonly #backoff = new Backoff({ initialMs: 100, maxMs: 2_000 });
  readonly #waiting = new Set<() => void>();
  readonly #failing = new Set<Registration>();
  #keeper: LeaseKeeper | undefined;
  #leaseId: string | undefined;
  #trouble: string | undefined;
  #retry: NodeJS.Timeout | undefined;
  #verifying: NodeJS.Timeout | undefined;
  #isVerifying = false;
  /** Those whose turn to be verified is still to come. */
  #turns: Registration[] = [];
  #closed: Promise<void> | undefined;

  constructor(options: EtcdDiscoveryOptions) {
    this.#options = options;
    this.#root = options.root ?? "stator";
    this.#ttlSeconds = Math.max(2, options.ttlSeconds ?? 10);
    this.#client = new EtcdClient(options.client);
  }

  /** Waits for etcd; rejects with `discovery_unavailable` after `startTimeoutMs`. */
  async register(record: InstanceRecord): Promise<Lease> {
    this.#assertOpen();
    const registration = new Registration(this.#client, this.#root, record, this.#options.logger);
    this.#keeper ??= new LeaseKeeper(this.#options.client, this.#ttlSeconds, (news) => this.#onLeaseNews(news));
    this.#verifying ??= setInterval(() => void this.#verifySome(), this.#ttlSeconds * 500).unref();
    for (const older of this.#registrations) if (older.key === registration.key) older.supersede();
    this.#registrations.add(registration);
    const deadline = performance.now() + (this.#options.startTimeoutMs ?? 30_000);
    await this.#reconcile(registration);
    while (!registration.stored && !registration.over) {
      const leftMs = deadline - performance.now();
      if (leftMs <= 0 || this.#closed) {
        registration.remove();
        await this.#reconcile(registration);
        this.#assertOpen();
        const { endpoints } = this.#options.client;
        const reason = this.#trouble ?? "no answer";
        throw new StatorError("discovery_unavailable", `${endpoints.join(", ")} cannot be used: ${reason}`);
      }
      await this.#somethingHappened(leftMs);
    }
    return {
      update: async (next) => {
        registration.update(next);
        await this.#reconcile(registration);
      },
      release: async () => {
        registration.remove();
        await this.#reconcile(registration);
      },
    };
  }

  watch(scope: Scope, listener: DiscoveryListener): Watch {
    if (this.#closed) return { close() {} };
    const prefix = prefixOf(this.#root, scope);
    let watcher = this.#watchers.get(prefix);
    if (watcher === undefined) {
      watcher = new PrefixWatcher({
        client: this.#client,
        prefix,
        base: prefixOf(this.#root, {}),
        graceMs: this.#ttlSeconds * 1000,
        logger: this.#options.logger,
      });
      this.#watchers.set(prefix, watcher);
    }
    const used = watcher;
    return used.feed.watch({}, listener, () => {
      if (used.feed.watcherCount > 0) return;
      // Nobody looks: the next watch starts from a fresh picture.
      if (this.#watchers.get(prefix) === used) this.#watchers.delete(prefix);
      void used.close();
    });
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    clearTimeout(this.#retry);
    clearInterval(this.#verifying);
    this.#stop.abort();
    this.#tellWaiting();
    const watchers = [...this.#watchers.values()];
    this.#watchers.clear();
    await Promise.all(watchers.map((watcher) => watcher.close()));
    // With the lease go its keys.
    await this.#keeper?.stop();
    await this.#client.close();
  }

  #assertOpen(): void {
    if (this.#closed) throw new StatorError("draining", "This discovery is closed.");
  }

  #onLeaseNews(news: LeaseNews): void {
    if (news.kind === "trouble") {
      if (this.#trouble === undefined) {
        const message =
          this.#leaseId === undefined
            ? "no etcd lease yet; registering as soon as etcd answers"
            : "the etcd lease is in danger";
        this.#options.logger?.warn({ reason: news.reason }, message);
      }
      this.#trouble = news.reason;
      this.#tellWaiting();
      return;
    }
    if (this.#trouble !== undefined) this.#options.logger?.info("the etcd lease is safe again");
    this.#trouble = undefined;
    if (news.id === this.#leaseId) return;
    if (this.#leaseId !== undefined) this.#options.logger?.warn("the etcd lease was lost; registering again");
    this.#leaseId = news.id;
    void this.#reconcileAll();
  }

  async #reconcileAll(): Promise<void> {
    await Promise.all([...this.#registrations].map((registration) => this.#reconcile(registration)));
  }

  /** Of many registrations a part in turn, each at least every twelfth time. */
  async #verifySome(): Promise<void> {
    if (this.#isVerifying || this.#leaseId === undefined || this.#trouble !== undefined) return;
    this.#isVerifying = true;
    if (this.#turns.length === 0) this.#turns = [...this.#registrations];
    const count = Math.max(VERIFIED_AT_ONCE, Math.ceil(this.#registrations.size / VERIFY_ROUNDS));
    for (const registration of this.#turns.splice(0, count)) {
      if (!this.#registrations.has(registration)) continue;
      const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(WRITE_TIMEOUT_MS)]);
      await registration.verify(signal).catch(() => {});
      await this.#reconcile(registration);
    }
    this.#isVerifying = false;
  }

  /** Never rejects: what could not be done now is tried again. */
  async #reconcile(registration: Registration): Promise<void> {
    if (this.#leaseId !== undefined && !this.#stop.signal.aborted) {
      try {
        const timeout = AbortSignal.timeout(WRITE_TIMEOUT_MS);
        await registration.reconcile(this.#leaseId, AbortSignal.any([this.#stop.signal, timeout]));
        this.#failing.delete(registration);
        if (this.#failing.size === 0) this.#backoff.reset();
      } catch (error) {
        this.#failing.add(registration);
        this.#trouble = (error as Error).message;
        this.#options.logger?.warn({ err: error, key: registration.key }, "cannot write to etcd yet");
        this.#retryLater();
      }
    }
    if (registration.over) {
      this.#registrations.delete(registration);
      this.#failing.delete(registration);
    }
    this.#tellWaiting();
  }

  #retryLater(): void {
    if (this.#retry !== undefined || this.#stop.signal.aborted) return;
    this.#retry = setTimeout(() => {
      this.#retry = undefined;
      void this.#reconcileAll();
    }, this.#backoff.nextDelayMs()).unref();
  }

  #somethingHappened(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.#waiting.delete(done);
        resolve();
      };
      const timer = setTimeout(done, timeoutMs);
      this.#waiting.add(done);
    });
  }

  #tellWaiting(): void {
    for (const done of [...this.#waiting]) done();
  }
}

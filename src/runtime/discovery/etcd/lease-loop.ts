import { setTimeout as delay } from "node:timers/promises";
import { Backoff } from "../../lifecycle/backoff.ts";
import type { EtcdClient } from "./etcd-client.ts";

export type LeaseNews =
  /** There is a lease; another id than before means that the former one was lost with all its keys. */
  | { readonly kind: "lease"; readonly id: string }
  /** etcd cannot be reached, and the lease may run out. */
  | { readonly kind: "trouble"; readonly reason: string };

const STOP_TIMEOUT_MS = 2_000;

/**
 * Keeps one lease alive, and takes a new one when it is lost. A renewal is due after a third of the life time; one that
 * failed is tried again after half of what is left, so never too late, and never more often than every 250 ms.
 */
export class LeaseLoop {
  readonly #client: EtcdClient;
  readonly #ttlSeconds: number;
  readonly #tell: (news: LeaseNews) => void;
  readonly #stop = new AbortController();
  #id: string | undefined;
  #ended: Promise<void> = Promise.resolve();

  constructor(client: EtcdClient, ttlSeconds: number, tell: (news: LeaseNews) => void) {
    this.#client = client;
    this.#ttlSeconds = ttlSeconds;
    this.#tell = tell;
  }

  run(): Promise<void> {
    this.#ended = this.#loop();
    return this.#ended;
  }

  /** Ends the loop and revokes the lease, so that its keys vanish now. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#ended;
    const id = this.#id;
    // Unreachable: the lease runs out by itself.
    if (id !== undefined) await this.#client.revokeLease(id, AbortSignal.timeout(STOP_TIMEOUT_MS)).catch(() => {});
    await this.#client.close();
  }

  async #loop(): Promise<void> {
    const { signal } = this.#stop;
    const backoff = new Backoff({ initialMs: 100, maxMs: 2_000 });
    const ttlMs = this.#ttlSeconds * 1000;
    let expiresAtMs = 0;
    while (!signal.aborted) {
      let waitMs: number;
      const askedAtMs = performance.now();
      try {
        if (this.#id === undefined) {
          this.#id = await this.#client.grantLease(this.#ttlSeconds, signal);
        } else if (!(await this.#keepAlive(this.#id, ttlMs))) {
          this.#id = undefined;
          continue;
        }
        this.#tell({ kind: "lease", id: this.#id });
        backoff.reset();
        expiresAtMs = askedAtMs + ttlMs;
        waitMs = ttlMs / 3;
      } catch (error) {
        if (signal.aborted) return;
        this.#tell({ kind: "trouble", reason: (error as Error).message });
        const leftMs = expiresAtMs - performance.now();
        waitMs = leftMs > 0 ? Math.max(leftMs / 2, 250) : backoff.nextDelayMs();
        waitMs = Math.min(waitMs, 2_000);
      }
      await delay(waitMs, undefined, { signal }).catch(() => {});
    }
  }

  /** An endpoint that is silent must not use up the life time: another one may answer. */
  #keepAlive(id: string, ttlMs: number): Promise<boolean> {
    return this.#client.keepLeaseAlive(id, AbortSignal.any([this.#stop.signal, AbortSignal.timeout(ttlMs / 4)]));
  }
}

import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";
import type { Discovery, DiscoveryListener, Lease, Scope, Watch } from "./discovery.ts";
import { withKeyOf } from "./instance-schema.ts";
import { WatchFeed } from "./watch-feed.ts";

/** The shared part of {@link MemoryDiscovery}: whoever has the same store sees the same workers. */
export class MemoryStore {
  /** @internal */
  readonly feed = new WatchFeed();

  constructor() {
    this.feed.synced();
  }
}

/** Discovery inside one process. */
export class MemoryDiscovery implements Discovery {
  readonly #feed: WatchFeed;
  readonly #leases = new Set<Lease>();
  readonly #watches = new Set<Watch>();

  constructor(store: MemoryStore = new MemoryStore()) {
    this.#feed = store.feed;
  }

  async register(record: InstanceRecord): Promise<Lease> {
    const feed = this.#feed;
    const key = instanceKey(record);
    let current: InstanceRecord | undefined = record;
    feed.upsert(record);
    // A newer lease under the same key has taken the place; this one has nothing to say any more.
    const isOwner = (): boolean => current !== undefined && feed.records.get(key)?.epoch === current.epoch;
    const lease: Lease = {
      update: async (next) => {
        if (!isOwner()) return;
        current = withKeyOf(next, record);
        feed.upsert(current);
      },
      release: async () => {
        this.#leases.delete(lease);
        if (isOwner()) feed.remove(key);
        current = undefined;
      },
    };
    this.#leases.add(lease);
    return lease;
  }

  watch(scope: Scope, listener: DiscoveryListener): Watch {
    const watch = this.#feed.watch(scope, listener, () => this.#watches.delete(watch));
    this.#watches.add(watch);
    return watch;
  }

  async close(): Promise<void> {
    for (const watch of [...this.#watches]) watch.close();
    await Promise.all([...this.#leases].map((lease) => lease.release()));
  }
}

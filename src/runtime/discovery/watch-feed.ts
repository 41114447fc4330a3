import { isDeepStrictEqual } from "node:util";
import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";
import type { DiscoveryListener, Scope, Watch } from "./discovery.ts";

/**
 * The current picture of a store, and its watchers. Keeps the order that a watch promises: the snapshot, `synced`, then
 * changes; each watcher is called from a later turn than the one that caused the call.
 */
export class WatchFeed {
  readonly #records = new Map<string, InstanceRecord>();
  readonly #watchers = new Set<Watcher>();
  #synced = false;
  #trouble: string | undefined;

  get records(): ReadonlyMap<string, InstanceRecord> {
    return this.#records;
  }

  get watcherCount(): number {
    return this.#watchers.size;
  }

  /** The store has been read completely once. */
  synced(): void {
    if (this.#synced) return;
    this.#synced = true;
    for (const watcher of this.#watchers) watcher.post((listener) => listener.onSynced());
  }

  upsert(record: InstanceRecord): void {
    const key = instanceKey(record);
    if (isDeepStrictEqual(this.#records.get(key), record)) return;
    this.#records.set(key, record);
    this.#tell(record, (listener) => listener.onUpsert(record));
  }

  /** By {@link instanceKey}. */
  remove(key: string): void {
    const record = this.#records.get(key);
    if (!record) return;
    this.#records.delete(key);
    this.#tell(record, (listener) => listener.onRemoved(record));
  }

  trouble(reason: string | undefined): void {
    if (this.#trouble === reason) return;
    this.#trouble = reason;
    for (const watcher of this.#watchers) watcher.post((listener) => listener.onTrouble?.(reason));
  }

  watch(scope: Scope, listener: DiscoveryListener, onClose: () => void = () => {}): Watch {
    const watcher = new Watcher(scope, listener);
    this.#watchers.add(watcher);
    for (const record of this.#records.values()) {
      if (isInScope(record, scope)) watcher.post((it) => it.onUpsert(record));
    }
    if (this.#synced) watcher.post((it) => it.onSynced());
    const reason = this.#trouble;
    if (reason !== undefined) watcher.post((it) => it.onTrouble?.(reason));
    return {
      close: () => {
        if (!this.#watchers.delete(watcher)) return;
        watcher.close();
        onClose();
      },
    };
  }

  #tell(record: InstanceRecord, call: (listener: DiscoveryListener) => void): void {
    for (const watcher of this.#watchers) if (isInScope(record, watcher.scope)) watcher.post(call);
  }

  close(): void {
    for (const watcher of this.#watchers) watcher.close();
    this.#watchers.clear();
    this.#records.clear();
  }
}

export function isInScope(record: InstanceRecord, scope: Scope): boolean {
  return (
    (scope.namespace === undefined || scope.namespace === record.namespace) &&
    (scope.component === undefined || scope.component === record.component)
  );
}

class Watcher {
  readonly scope: Scope;
  readonly #listener: DiscoveryListener;
  #queue: ((listener: DiscoveryListener) => void)[] = [];
  #scheduled = false;
  #closed = false;

  constructor(scope: Scope, listener: DiscoveryListener) {
    this.scope = scope;
    this.#listener = listener;
  }

  post(call: (listener: DiscoveryListener) => void): void {
    this.#queue.push(call);
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      const calls = this.#queue;
      this.#queue = [];
      for (const it of calls) if (!this.#closed) it(this.#listener);
    });
  }

  close(): void {
    this.#closed = true;
    this.#queue = [];
  }
}

import type { InstanceRecord } from "../../protocol/instance.ts";

/**
 * Who is there. Three implementations, `memory.ts`, `file.ts` and `etcd/`, pass the same suite,
 * `discovery.contract.ts`.
 * A watch gives the present records, then `synced` once, then changes. Losing the store freezes the picture; it never
 * removes anybody.
 */
export interface Discovery {
  /** Visible to watchers until the lease is released, or until the process dies and the store notices. */
  register(record: InstanceRecord): Promise<Lease>;
  /** Of the instances in `scope`. */
  watch(scope: Scope, listener: DiscoveryListener): Watch;
  /** Releases the leases and watches made here. Idempotent. */
  close(): Promise<void>;
}

/** Everything, one namespace, or one component of it. */
export interface Scope {
  readonly namespace?: string;
  /** Together with `namespace`. */
  readonly component?: string;
}

export interface Lease {
  /** Replaces the record under the same key. */
  update(record: InstanceRecord): Promise<void>;
  /** Idempotent. */
  release(): Promise<void>;
}

/** Called one after another, never inside `watch()` itself. They must not throw. */
export interface DiscoveryListener {
  /** A new record, or a new version of a known one (of another address, say, or another epoch). */
  onUpsert(record: InstanceRecord): void;
  /** The record as it was last told. */
  onRemoved(record: InstanceRecord): void;
  onSynced(): void;
  /** The store cannot be read; `undefined` when it can be again. */
  onTrouble?(reason: string | undefined): void;
}

export interface Watch {
  close(): void;
}

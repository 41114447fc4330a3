import type { Logger } from "pino";
import { StatorError } from "../../../protocol/errors.ts";
import type { InstanceRecord } from "../../../protocol/instance.ts";
import { MAX_RECORD_BYTES, readInstanceRecord, withKeyOf } from "../instance-schema.ts";
import type { EtcdClient, KeyValue } from "./etcd-client.ts";
import { keyOf, readValue, writeValue } from "./layout.ts";

/** Others may write at the same moment; more often than so it is not a coincidence. */
const MAX_TRIES = 5;

/**
 * One record that should be in the store, or should not any more. `reconcile` makes it so and may be called as often as
 * one likes; its calls run one after another.
 */
export class Registration {
  readonly key: string;
  readonly #client: EtcdClient;
  readonly #logger: Logger | undefined;
  #record: InstanceRecord;
  #wanted = true;
  #superseded = false;
  #everStored = false;
  /** Another epoch has the place. When it goes, this one takes the place again. */
  #replaced = false;
  /** What the store has of us, as far as we know. */
  #stored: { readonly record: InstanceRecord; readonly leaseId: string; readonly modRevision: bigint } | undefined;
  /** A write may have reached the store, whether or not we have heard of it. */
  #mayBeThere = false;
  #last: Promise<void> = Promise.resolve();

  constructor(client: EtcdClient, root: string, record: InstanceRecord, logger: Logger | undefined) {
    this.#client = client;
    this.#record = checked(record);
    this.key = keyOf(root, record);
    this.#logger = logger;
  }

  get stored(): boolean {
    return this.#stored !== undefined;
  }

  /** Nothing is left to do, ever. */
  get over(): boolean {
    return this.#superseded || (!this.#wanted && !this.#mayBeThere);
  }

  update(record: InstanceRecord): void {
    this.#record = checked(withKeyOf(record, this.#record));
  }

  remove(): void {
    this.#wanted = false;
  }

  /** A newer registration of this process has the key: this one touches it no more. */
  supersede(): void {
    this.#superseded = true;
    this.#stored = undefined;
  }

  /** Notices that somebody has changed or deleted the key; `reconcile` then makes it right. */
  verify(signal: AbortSignal): Promise<void> {
    return this.#inTurn(async () => {
      if (!this.#stored) return;
      const there = await this.#client.get(this.key, signal);
      if (there?.modRevision !== this.#stored?.modRevision) this.#stored = undefined;
    });
  }

  reconcile(leaseId: string, signal: AbortSignal): Promise<void> {
    return this.#inTurn(() => (this.#wanted ? this.#write(leaseId, signal) : this.#erase(signal)));
  }

  async #write(leaseId: string, signal: AbortSignal): Promise<void> {
    const record = this.#record;
    if (this.#stored?.leaseId === leaseId && this.#stored.record === record) return;
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      const there = await this.#client.get(this.key, signal);
      if (this.#superseded) return;
      const epoch = there && epochOf(there);
      // The first time this one is the newcomer that takes the place; later it is the one that has lost it.
      if (this.#everStored && epoch !== undefined && epoch !== record.epoch) return this.#lose();
      this.#mayBeThere = true;
      const modRevision = await this.#client.put(
        this.key,
        writeValue(record),
        leaseId,
        there?.modRevision ?? 0n,
        signal,
      );
      if (modRevision === undefined) continue;
      if (this.#superseded) return;
      this.#stored = { record, leaseId, modRevision };
      this.#everStored = true;
      this.#replaced = false;
      return;
    }
    throw this.#changing();
  }

  async #erase(signal: AbortSignal): Promise<void> {
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      if (this.over) return;
      const there = await this.#client.get(this.key, signal);
      if (this.#superseded) return;
      const isOurs = there !== undefined && epochOf(there) === this.#record.epoch;
      if (isOurs && (await this.#client.delete(this.key, there.modRevision, signal)) === undefined) continue;
      this.#stored = undefined;
      this.#mayBeThere = false;
      return;
    }
    throw this.#changing();
  }

  #lose(): void {
    this.#stored = undefined;
    if (this.#replaced) return;
    this.#replaced = true;
    const { workerId } = this.#record;
    this.#logger?.warn({ workerId }, "another process has registered under this worker id");
  }

  #changing(): StatorError {
    return new StatorError("discovery_unavailable", `etcd: ${this.key} changes all the time.`);
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.#last.then(work);
    this.#last = done.catch(() => {});
    return done;
  }
}

/** Undefined for a value that is no record. */
function epochOf({ value }: KeyValue): string | undefined {
  const record = readValue(value);
  return typeof record === "string" ? undefined : record.epoch;
}

/** Nobody would show a record that is not valid: better to hear so here than to miss it everywhere else. */
function checked(record: InstanceRecord): InstanceRecord {
  const value = writeValue(record);
  if (Buffer.byteLength(value) > MAX_RECORD_BYTES) {
    throw new StatorError("payload_too_large", `An instance record has over ${MAX_RECORD_BYTES} bytes.`);
  }
  const problem = readInstanceRecord(JSON.parse(value).record);
  if (typeof problem === "string") {
    throw new StatorError("invalid_value", `The worker cannot be registered: ${problem}.`);
  }
  return record;
}

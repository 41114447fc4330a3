import type { Logger } from "pino";
import { DEFAULT_NAMESPACE, isWorkerRecord, type WorkerRecord } from "../../protocol/instance.ts";
import { cardDigest } from "../../protocol/model-card.ts";
import type { Discovery, Scope, Watch } from "../../runtime/discovery/discovery.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";
import { Inhibitions } from "./inhibitions.ts";
import { MembershipLog } from "./membership-log.ts";
import { ServedModel } from "./served-model.ts";

export interface WorkerView {
  readonly record: WorkerRecord;
  /** `ready` takes requests; `loading` waits for its tokenizer; `conflict` has another card than the workers that serve its name. */
  readonly state: "ready" | "loading" | "conflict";
}

/** Names beyond so many are forgotten with their last worker. */
const MAX_KNOWN_NAMES = 10_000;

/**
 * What can be served right now, kept in step with discovery. Workers with identical cards form one model; a worker whose
 * card differs under the same name waits, visibly, until the others are gone.
 */
export class ModelCatalog {
  readonly inhibitions: Inhibitions;
  readonly #plane: RequestPlaneClient;
  readonly #logger: Logger;
  readonly #watch: Watch;
  /** By served name. */
  readonly #models = new Map<string, ServedModel>();
  readonly #aliases = new Map<string, ServedModel>();
  /** Every worker that discovery shows. */
  readonly #workers = new Map<string, { record: WorkerRecord; digest: string }>();
  /** By id; undefined after a change. */
  #records: readonly WorkerRecord[] | undefined;
  readonly #membership: MembershipLog;
  readonly #listeners = new Set<() => void>();
  /** Names that are served or were: without a worker they are not ready, not unknown. */
  readonly #known = new Set<string>();
  #trouble: string | undefined;
  #synced = false;

  /** `expected`: names that are going to be served. `scope`: which workers; default: the default namespace. */
  constructor(parts: {
    discovery: Discovery;
    plane: RequestPlaneClient;
    logger: Logger;
    expected?: readonly string[];
    scope?: Scope;
  }) {
    for (const name of parts.expected ?? []) this.#known.add(name);
    this.#plane = parts.plane;
    this.#logger = parts.logger;
    this.#membership = new MembershipLog(parts.logger);
    this.inhibitions = new Inhibitions(parts.plane, parts.logger);
    this.#watch = parts.discovery.watch(parts.scope ?? { namespace: DEFAULT_NAMESPACE }, {
      // Instances without a model are services that nobody here calls.
      onUpsert: (record) => isWorkerRecord(record) && this.#upsert(record),
      // A process that also serves endpoints of its own has another record under the same id.
      onRemoved: (record) => isWorkerRecord(record) && this.#remove(record.workerId, record.epoch),
      onSynced: () => {
        this.#synced = true;
        this.#changed();
      },
      onTrouble: (reason) => {
        this.#trouble = reason;
        if (reason !== undefined)
          this.#logger.warn({ reason }, "discovery is in trouble; serving the last known workers");
        this.#changed();
      },
    });
  }

  /** The first picture of discovery is complete. */
  get synced(): boolean {
    return this.#synced;
  }

  /** By served name or alias. */
  lookup(name: string): ServedModel | undefined {
    return this.#models.get(name) ?? this.#aliases.get(name);
  }

  /** The name is, was, or is going to be served. */
  isKnown(name: string): boolean {
    return this.#known.has(name);
  }

  /** Models that a request could reach. */
  list(): readonly ServedModel[] {
    return [...this.#models.values()].filter((model) => model.ready);
  }

  /** Every worker that discovery shows, by id. */
  workers(): readonly WorkerView[] {
    this.#records ??= [...this.#workers.values()]
      .map(({ record }) => record)
      .sort((a, b) => (a.workerId < b.workerId ? -1 : 1));
    return this.#records.map((record) => {
      const model = this.#models.get(record.card.name);
      const joined = model?.worker(record.workerId)?.epoch === record.epoch;
      return { record, state: !joined ? "conflict" : model?.ready ? "ready" : "loading" };
    });
  }

  /** What an operator should know, one line each. */
  problems(): readonly string[] {
    const conflicts = this.workers()
      .filter(({ state }) => state === "conflict")
      .map(
        ({ record }) =>
          `worker ${record.workerId} is left out: its card for ${JSON.stringify(record.card.name)} differs from that of the workers that serve the name`,
      );
    const discovery = this.#trouble === undefined ? [] : [`discovery: ${this.#trouble}`];
    return [...discovery, ...conflicts, ...this.inhibitions.problems()];
  }

  /** Called after each change. Returns the way to stop it. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async close(): Promise<void> {
    this.#watch.close();
    this.inhibitions.close();
    this.#membership.close();
    const models = [...this.#models.values()];
    this.#models.clear();
    this.#aliases.clear();
    this.#workers.clear();
    this.#records = undefined;
    await Promise.all(models.map((model) => model.close()));
  }

  #upsert(record: WorkerRecord): void {
    const known = this.#workers.get(record.workerId);
    const digest = cardDigest(record.card);
    if (known !== undefined && (known.digest !== digest || known.record.card.name !== record.card.name)) {
      this.#workers.delete(record.workerId);
      this.#leave(known.record);
    }
    if (known?.record.epoch !== record.epoch) {
      const { workerId, address, card } = record;
      this.#membership.joined({ workerId, model: card.name, address });
    }
    this.inhibitions.discovered(record.workerId, record);
    this.#workers.set(record.workerId, { record, digest });
    this.#join(record, digest);
    this.#changed();
  }

  #remove(workerId: string, epoch: string): void {
    const known = this.#workers.get(workerId);
    if (known === undefined || known.record.epoch !== epoch) return; // late news of an older epoch
    this.#workers.delete(workerId);
    this.inhibitions.discovered(workerId, undefined);
    this.#membership.left({ workerId, model: known.record.card.name });
    this.#leave(known.record);
    this.#changed();
  }

  #join(record: WorkerRecord, digest: string): void {
    const { name, aliases } = record.card;
    let model = this.#models.get(name);
    if (model !== undefined && model.digest !== digest) {
      this.#logger.warn(
        { workerId: record.workerId, model: name },
        "worker left out: another card under the same name",
      );
      return;
    }
    if (model === undefined) {
      model = new ServedModel(
        record.card,
        digest,
        Math.floor(record.startedAtMs / 1000),
        this.#plane,
        this.inhibitions,
      );
      this.#models.set(name, model);
      for (const known of [name, ...aliases]) if (this.#known.size < MAX_KNOWN_NAMES) this.#known.add(known);
      for (const alias of aliases) if (!this.#aliases.has(alias)) this.#aliases.set(alias, model);
    }
    model.put(record);
    if (model.ready) return;
    // Ahead of the first request; a failure here is reported by the request that needs it.
    model.tokenizer(AbortSignal.timeout(60_000)).then(
      () => this.#changed(),
      (error: unknown) => this.#logger.warn({ err: error, model: name }, "the tokenizer could not be loaded yet"),
    );
  }

  #leave(record: WorkerRecord): void {
    const model = this.#models.get(record.card.name);
    if (model?.worker(record.workerId) === undefined) return;
    model.remove(record.workerId);
    if (model.size > 0) return;
    this.#models.delete(record.card.name);
    for (const [alias, owner] of this.#aliases) if (owner === model) this.#aliases.delete(alias);
    model.close().catch((error: unknown) => this.#logger.warn({ err: error }, "closing a tokenizer failed"));
    // A set that had to wait because of this one takes over.
    for (const waiting of this.#workers.values()) {
      if (waiting.record.card.name === record.card.name) this.#join(waiting.record, waiting.digest);
    }
  }

  #changed(): void {
    this.#records = undefined;
    for (const listener of this.#listeners) listener();
  }
}

import { readFile, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Logger } from "pino";
import { StatorError } from "../../protocol/errors.ts";
import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import type { Discovery, DiscoveryListener, Lease, Scope, Watch } from "./discovery.ts";
import { prepareFolder } from "./folder.ts";
import { FolderWatcher } from "./folder-watcher.ts";
import {
  fileNameOf,
  isMissing,
  parseInstanceFile,
  type TouchResult,
  touchInstanceFile,
  writeInstanceFile,
} from "./instance-file.ts";
import { withKeyOf } from "./instance-schema.ts";
import { identityOf } from "./process-identity.ts";
import { WatchFeed } from "./watch-feed.ts";

export interface FileDiscoveryOptions {
  readonly folder: string;
  /** How often a lease renews its file. Default 2 s. */
  readonly heartbeatMs?: number;
  /** A file that nobody has renewed for so long is of a dead worker. Default 10 s. */
  readonly expiryMs?: number;
  /** How often watchers look, whatever `fs.watch` tells. Default 1 s. */
  readonly pollMs?: number;
  readonly logger?: Logger;
}

/** Up to so many files are renewed in every beat; of more, a part in turn, each at least every thirtieth beat. */
const RENEWED_PER_BEAT = 16;
const BEATS_PER_ROUND = 30;

/** Discovery between processes of one user, over a folder: one file per worker. */
export class FileDiscovery implements Discovery {
  readonly #folder: string;
  readonly #options: FileDiscoveryOptions;
  readonly #leases = new Set<FileLease>();
  readonly #beatId = uniqueId();
  #feed = new WatchFeed();
  #watcher: FolderWatcher | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #beat: Promise<void> | undefined;
  /** Those whose turn is still to come in this round. */
  #turns: FileLease[] = [];
  #closed = false;

  constructor(options: FileDiscoveryOptions) {
    this.#options = options;
    this.#folder = resolve(options.folder);
  }

  async register(record: InstanceRecord): Promise<Lease> {
    if (this.#closed) throw new StatorError("draining", "This discovery is closed.");
    const lease = new FileLease(this.#folder, record, this.#beatId, this.#options.logger, () => {
      this.#leases.delete(lease);
      this.#watcher?.scan();
      if (this.#leases.size === 0) {
        clearInterval(this.#heartbeat);
        this.#heartbeat = undefined;
      }
    });
    await lease.update(record);
    if (this.#closed) {
      // Nobody would ever renew or remove it.
      await lease.release();
      throw new StatorError("draining", "This discovery was closed.");
    }
    this.#leases.add(lease);
    this.#heartbeat ??= setInterval(() => this.#renew(), this.#options.heartbeatMs ?? 2000).unref();
    this.#watcher?.scan();
    return lease;
  }

  watch(scope: Scope, listener: DiscoveryListener): Watch {
    if (this.#closed) return { close() {} };
    this.#watcher ??= new FolderWatcher(
      {
        folder: this.#folder,
        pollMs: this.#options.pollMs ?? 1000,
        expiryMs: this.#options.expiryMs ?? 10_000,
        logger: this.#options.logger,
      },
      this.#feed,
    );
    return this.#feed.watch(scope, listener, () => {
      if (this.#feed.watcherCount > 0) return;
      // Nobody looks: the next watch starts from a fresh picture.
      void this.#watcher?.close();
      this.#watcher = undefined;
      this.#feed = new WatchFeed();
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#feed.close();
    clearInterval(this.#heartbeat);
    const watcher = this.#watcher;
    this.#watcher = undefined;
    await Promise.all([watcher?.close(), this.#beat, ...[...this.#leases].map((lease) => lease.release())]);
  }

  #renew(): void {
    this.#beat ??= this.#renewSome().finally(() => {
      this.#beat = undefined;
    });
  }

  async #renewSome(): Promise<void> {
    const count = Math.max(RENEWED_PER_BEAT, Math.ceil(this.#leases.size / BEATS_PER_ROUND));
    if (this.#turns.length === 0) this.#turns = [...this.#leases];
    const missing = await renewEach(this.#turns.splice(0, count));
    // Where one is missing the others may be, too: somebody has emptied the folder.
    if (missing) await renewEach([...this.#leases]);
  }
}

/** Whether one of them was not there any more. */
async function renewEach(leases: readonly FileLease[]): Promise<boolean> {
  const results = await Promise.all(leases.map((lease) => lease.renew()));
  return results.includes("missing");
}

const thisProcess = identityOf(process.pid);

/** One file. Its operations run one after another. */
class FileLease implements Lease {
  readonly #folder: string;
  readonly #logger: Logger | undefined;
  readonly #onReleased: () => void;
  readonly #beat: string;
  #record: InstanceRecord;
  /** What the file has: another one than `#record` after a write that failed. */
  #written: InstanceRecord | undefined;
  #inode = 0n;
  #released = false;
  /** Another process has the place. When it goes, this one takes the place again. */
  #replaced = false;
  #last: Promise<unknown> = Promise.resolve();

  constructor(
    folder: string,
    record: InstanceRecord,
    beat: string,
    logger: Logger | undefined,
    onReleased: () => void,
  ) {
    this.#folder = folder;
    this.#record = record;
    this.#beat = beat;
    this.#logger = logger;
    this.#onReleased = onReleased;
  }

  update(record: InstanceRecord): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#released) return;
      this.#record = withKeyOf(record, this.#record);
      // The first time this one is the newcomer that takes the place; later it may be the one that has lost it.
      if (this.#written === undefined || (await this.#touch()) !== "replaced") await this.#write();
    });
  }

  /** How the file was found; undefined when that is unknown. Never rejects: a store that is away comes back. */
  renew(): Promise<TouchResult | undefined> {
    return this.#inTurn(async () => {
      if (this.#released) {
        // The file could not be removed, and the beat of the others would keep it fresh.
        if (await this.#removeOwnFile()) this.#onReleased();
        return undefined;
      }
      const { workerId } = this.#record;
      try {
        const result = await this.#touch();
        if (result === "missing" || (result === "touched" && this.#written !== this.#record)) await this.#write();
        return result;
      } catch (err) {
        this.#logger?.warn({ err, workerId }, "cannot renew the registration");
        return undefined;
      }
    });
  }

  release(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#released) return;
      this.#released = true;
      if (await this.#removeOwnFile()) this.#onReleased();
    });
  }

  async #touch(): Promise<TouchResult> {
    const result = await touchInstanceFile(join(this.#folder, fileNameOf(instanceKey(this.#record))), this.#inode);
    if (result === "replaced" && !this.#replaced) {
      const { workerId } = this.#record;
      this.#logger?.warn({ workerId }, "another process has registered under this worker id");
    }
    this.#replaced = result === "replaced";
    return result;
  }

  async #write(): Promise<void> {
    await prepareFolder(this.#folder);
    const record = this.#record;
    this.#inode = await writeInstanceFile(this.#folder, { record, process: thisProcess, beat: this.#beat });
    this.#written = record;
  }

  /** False when that has to be tried again. */
  async #removeOwnFile(): Promise<boolean> {
    if (this.#replaced) return true;
    const name = fileNameOf(instanceKey(this.#record));
    const path = join(this.#folder, name);
    try {
      const content = parseInstanceFile(name, await readFile(path, "utf8"));
      if (typeof content === "string" || content.record.epoch === this.#record.epoch) await rm(path, { force: true });
      return true;
    } catch (err) {
      if (isMissing(err)) return true;
      this.#logger?.warn({ err, path }, "cannot remove the registration yet");
      return false;
    }
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#last.then(work);
    this.#last = done.catch(() => {});
    return done;
  }
}

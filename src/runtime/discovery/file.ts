import { readFile, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Logger } from "pino";
import { StatorError } from "../../protocol/errors.ts";
import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";
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

/** Discovery between processes of one user, over a folder: one file per worker. */
export class FileDiscovery implements Discovery {
  readonly #folder: string;
  readonly #options: FileDiscoveryOptions;
  readonly #leases = new Set<FileLease>();
  #feed = new WatchFeed();
  #watcher: FolderWatcher | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #beat: Promise<void> | undefined;
  #closed = false;

  constructor(options: FileDiscoveryOptions) {
    this.#options = options;
    this.#folder = resolve(options.folder);
  }

  async register(record: InstanceRecord): Promise<Lease> {
    if (this.#closed) throw new StatorError("draining", "This discovery is closed.");
    const lease = new FileLease(this.#folder, record, this.#options.logger, () => {
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
    this.#heartbeat ??= setInterval(() => this.#renewAll(), this.#options.heartbeatMs ?? 2000).unref();
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

  #renewAll(): void {
    this.#beat ??= Promise.all([...this.#leases].map((lease) => lease.renew()))
      .then(() => {})
      .finally(() => {
        this.#beat = undefined;
      });
  }
}

/** One file. Its operations run one after another. */
class FileLease implements Lease {
  readonly #folder: string;
  readonly #logger: Logger | undefined;
  readonly #onReleased: () => void;
  readonly #process = identityOf(process.pid);
  #record: InstanceRecord;
  /** What the file has: another one than `#record` after a write that failed. */
  #written: InstanceRecord | undefined;
  #inode = 0n;
  #released = false;
  /** Another process has the place. When it goes, this one takes the place again. */
  #replaced = false;
  #last: Promise<void> = Promise.resolve();

  constructor(folder: string, record: InstanceRecord, logger: Logger | undefined, onReleased: () => void) {
    this.#folder = folder;
    this.#record = record;
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

  /** Never rejects: a store that is away comes back. */
  renew(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#released) return;
      const { workerId } = this.#record;
      try {
        const result = await this.#touch();
        if (result === "missing" || (result === "touched" && this.#written !== this.#record)) await this.#write();
      } catch (err) {
        this.#logger?.warn({ err, workerId }, "cannot renew the registration");
      }
    });
  }

  release(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#released) return;
      this.#released = true;
      try {
        await this.#removeOwnFile();
      } finally {
        this.#onReleased();
      }
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
    this.#inode = await writeInstanceFile(this.#folder, { record, process: this.#process });
    this.#written = record;
  }

  async #removeOwnFile(): Promise<void> {
    if (this.#replaced) return;
    const name = fileNameOf(instanceKey(this.#record));
    const path = join(this.#folder, name);
    try {
      const content = parseInstanceFile(name, await readFile(path, "utf8"));
      if (typeof content === "string" || content.record.epoch === this.#record.epoch) await rm(path, { force: true });
    } catch (err) {
      if (!isMissing(err)) this.#logger?.warn({ err, path }, "cannot remove the registration; it will expire");
    }
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.#last.then(work);
    this.#last = done.catch(() => {});
    return done;
  }
}

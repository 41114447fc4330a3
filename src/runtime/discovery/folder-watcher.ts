import { type FSWatcher, watch } from "node:fs";
import { lstat, readdir, readFile, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "pino";
import { instanceKey } from "../../protocol/instance.ts";
import { fileSystemNow, prepareFolder } from "./folder.ts";
import {
  FILE_SUFFIX,
  type InstanceFile,
  isMissing,
  MAX_FILE_BYTES,
  parseInstanceFile,
  TEMPORARY_PREFIX,
} from "./instance-file.ts";
import { isGone, type ProcessIdentity } from "./process-identity.ts";
import type { WatchFeed } from "./watch-feed.ts";

const MAX_FILES = 32_768;
/** A file that was only touched is read again after so long, in case it is another one that looks alike. */
const READ_AGAIN_MS = 30_000;
/** Looking takes at most this part of the time, however many files there are. */
const LOOKING_SHARE = 0.05;
/** What nobody has touched for so long is swept away. */
const SWEEP_AFTER_MS = 60_000;

export interface FolderWatcherOptions {
  readonly folder: string;
  readonly pollMs: number;
  readonly expiryMs: number;
  readonly logger: Logger | undefined;
}

/** What is known of one file. */
interface Seen {
  mtimeMs: number;
  /** When this process first saw that time stamp: expiry needs no agreement between clocks. */
  changedAtMs: number;
  /** Which file it was when it was read, and when; undefined = it has to be read. */
  identity: string | undefined;
  readAtMs: number;
  content: InstanceFile | undefined;
}

/** What is found out once per look. */
class Look {
  readonly #gone = new Map<string, boolean>();
  readonly #folder: string;
  #fileSystemNow: Promise<number> | undefined;

  constructor(folder: string) {
    this.#folder = folder;
  }

  fileSystemNow(): Promise<number> {
    this.#fileSystemNow ??= fileSystemNow(this.#folder);
    return this.#fileSystemNow;
  }

  isGone(process: ProcessIdentity): boolean {
    const key = `${process.machine}/${process.pid}/${process.startedAt}`;
    let gone = this.#gone.get(key);
    if (gone === undefined) {
      gone = isGone(process);
      this.#gone.set(key, gone);
    }
    return gone;
  }
}

/**
 * Reads the folder again and again and keeps a {@link WatchFeed} in step with it. `fs.watch` makes it quick, polling makes
 * it certain. A folder that cannot be read freezes the picture; after it has come back, workers have one expiry time to
 * register again before they count as gone.
 */
export class FolderWatcher {
  readonly #options: FolderWatcherOptions;
  readonly #feed: WatchFeed;
  readonly #seen = new Map<string, Seen>();
  #timer: NodeJS.Timeout | undefined;
  #fsWatcher: FSWatcher | undefined;
  #inode = -1;
  #scan: Promise<void> | undefined;
  #scanAgain = false;
  #closed = false;
  #graceUntilMs = 0;

  constructor(options: FolderWatcherOptions, feed: WatchFeed) {
    this.#options = options;
    this.#feed = feed;
    this.scan();
  }

  /** Looks now; looks once more when a look is under way. */
  scan(): void {
    if (this.#closed) return;
    if (this.#scan) {
      this.#scanAgain = true;
      return;
    }
    clearTimeout(this.#timer);
    const beganAtMs = performance.now();
    this.#scan = this.#lookSafely().finally(() => {
      this.#scan = undefined;
      if (this.#closed) return;
      const pauseMs = this.#scanAgain ? 0 : this.#pauseMs(performance.now() - beganAtMs);
      this.#timer = setTimeout(() => this.scan(), pauseMs).unref();
      this.#scanAgain = false;
    });
  }

  #pauseMs(tookMs: number): number {
    const { pollMs, expiryMs } = this.#options;
    return Math.max(pollMs, Math.min(tookMs / LOOKING_SHARE, expiryMs / 4));
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#fsWatcher?.close();
    await this.#scan;
  }

  async #lookSafely(): Promise<void> {
    try {
      if (this.#inode === -1) await prepareFolder(this.#options.folder);
      await this.#look();
      this.#feed.trouble(undefined);
      this.#feed.synced();
    } catch (thrown) {
      this.#graceUntilMs = performance.now() + this.#options.expiryMs;
      this.#feed.trouble(`The discovery folder ${this.#options.folder} cannot be read: ${String(thrown)}`);
    }
  }

  async #look(): Promise<void> {
    const { folder } = this.#options;
    const { ino } = await stat(folder);
    this.#watchFolder(ino);
    const names = (await readdir(folder)).slice(0, MAX_FILES);
    const present = new Set<string>();
    const look = new Look(folder);
    for (const name of names) {
      if (name.endsWith(FILE_SUFFIX) || name.startsWith(TEMPORARY_PREFIX)) {
        if (await this.#lookAt(name, look)) present.add(name);
      }
    }
    // A folder that was replaced meanwhile says nothing about the files that were read before.
    if ((await stat(folder)).ino !== ino) throw new Error("it was replaced");
    const now = performance.now();
    const beats = this.#beats();
    for (const [name, seen] of this.#seen) {
      const beatAtMs = beats.get(seen.content?.beat ?? "") ?? seen.changedAtMs;
      await this.#judge(name, seen, present.has(name), now - beatAtMs, look);
    }
  }

  /** When a file of each beat was renewed last. */
  #beats(): ReadonlyMap<string, number> {
    const beats = new Map<string, number>();
    for (const { content, changedAtMs } of this.#seen.values()) {
      const beat = content?.beat;
      if (beat !== undefined) beats.set(beat, Math.max(changedAtMs, beats.get(beat) ?? changedAtMs));
    }
    return beats;
  }

  /** Reads what is new about a file; false when it is not there any more. */
  async #lookAt(name: string, look: Look): Promise<boolean> {
    const path = join(this.#options.folder, name);
    try {
      const { mtimeMs, size, uid, isFile, identity } = await statOf(path);
      let seen = this.#seen.get(name);
      if (seen?.mtimeMs === mtimeMs) return true;
      const now = performance.now();
      if (seen) {
        seen.mtimeMs = mtimeMs;
        seen.changedAtMs = now;
      } else {
        // Its age at first sight is the only thing that needs a clock: the file system's.
        const ageMs = Math.max(0, (await look.fileSystemNow()) - mtimeMs);
        seen = { mtimeMs, changedAtMs: now - ageMs, identity: undefined, readAtMs: now, content: undefined };
        this.#seen.set(name, seen);
      }
      if (name.startsWith(TEMPORARY_PREFIX)) return true;
      // Renewed, not replaced: what it says has not changed.
      const isTouched = identity !== undefined && seen.identity === identity;
      if (isTouched && seen.content && now - seen.readAtMs < READ_AGAIN_MS) return true;
      seen.identity = identity;
      seen.readAtMs = now;
      const self = process.getuid?.();
      const problem = !isFile
        ? "it is not a plain file"
        : self !== undefined && self !== 0 && uid !== self
          ? "it belongs to another user"
          : size > MAX_FILE_BYTES
            ? `it has ${size} bytes, at most ${MAX_FILE_BYTES} are read`
            : undefined;
      const content = problem ?? parseInstanceFile(name, await readFile(path, "utf8"));
      if (typeof content === "string") {
        this.#options.logger?.warn({ file: path, problem: content }, "skipped a file in the discovery folder");
        // What it said before holds until it expires, and nobody else's beat keeps it fresh.
        if (seen.content) seen.content = { ...seen.content, beat: undefined };
      } else {
        seen.content = content;
      }
      return true;
    } catch (thrown) {
      if (isMissing(thrown)) return false;
      if ((thrown as NodeJS.ErrnoException).code === "EACCES") {
        this.#options.logger?.warn({ file: path, err: thrown }, "skipped a file in the discovery folder");
        return true;
      }
      throw thrown;
    }
  }

  async #judge(name: string, seen: Seen, present: boolean, silentMs: number, look: Look): Promise<void> {
    const { content } = seen;
    const gone = content !== undefined && look.isGone(content.process);
    const inGrace = !present && performance.now() < this.#graceUntilMs && content !== undefined;
    // Only what a worker has written is ever deleted: the folder may have been given by mistake.
    const isOurs = content !== undefined || name.startsWith(TEMPORARY_PREFIX);
    if (present && isOurs && (gone || silentMs > SWEEP_AFTER_MS + this.#options.expiryMs)) {
      await rm(join(this.#options.folder, name), { force: true }).catch(() => {});
    }
    if (!gone && content && (inGrace || (present && silentMs <= this.#options.expiryMs))) {
      this.#feed.upsert(content.record);
      return;
    }
    if (content) this.#feed.remove(instanceKey(content.record));
    if (!present || gone) this.#seen.delete(name);
  }

  #watchFolder(inode: number): void {
    if (inode === this.#inode && this.#fsWatcher) return;
    if (this.#inode !== -1 && inode !== this.#inode) {
      this.#graceUntilMs = performance.now() + this.#options.expiryMs;
    }
    this.#inode = inode;
    this.#fsWatcher?.close();
    this.#fsWatcher = undefined;
    try {
      // "rename" = a file came, went or was replaced. "change" = a heartbeat, which polling sees early enough.
      const watcher = watch(this.#options.folder, { persistent: false }, (event, name) => {
        if (event === "rename" && !name?.startsWith(TEMPORARY_PREFIX)) this.scan();
      });
      watcher.on("error", () => {
        watcher.close();
        if (this.#fsWatcher === watcher) this.#fsWatcher = undefined;
      });
      this.#fsWatcher = watcher;
    } catch (err) {
      this.#options.logger?.debug({ err }, "the discovery folder is polled only");
    }
  }
}

interface Stat {
  readonly mtimeMs: number;
  readonly size: number;
  readonly uid: number;
  readonly isFile: boolean;
  /** Another one for another file, also when that has the inode of one that is gone; undefined where that is not known. */
  readonly identity: string | undefined;
}

async function statOf(path: string): Promise<Stat> {
  const found = await lstat(path);
  const { mtimeMs, size, uid, ino, birthtimeMs } = found;
  const identity = birthtimeMs > 0 ? `${ino}/${birthtimeMs}/${size}` : undefined;
  return { mtimeMs, size, uid, isFile: found.isFile(), identity };
}

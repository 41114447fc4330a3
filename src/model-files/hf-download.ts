import { createHash, randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { copyFile, mkdir, open, readdir, readFile, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { StatorError } from "../protocol/index.ts";
import { HfClient, type HfClientOptions, type HfFileInfo, reasonOf, TransientFailure } from "./hf-client.ts";
import { withLock } from "./lock-file.ts";

export interface HfDownloadOptions extends HfClientOptions {
  /** The hub cache: HF_HUB_CACHE, or HF_HOME/hub. */
  readonly cacheDir: string;
  /** HF_HUB_OFFLINE: use the cache only. */
  readonly offline?: boolean;
  readonly onProgress?: (progress: DownloadProgress) => void;
  /** Attempts in a row without a new byte. Default 5. */
  readonly maxAttempts?: number;
  /** Wait before the second attempt; doubles, up to 30 s. Default 1,000. */
  readonly backoffMs?: number;
}

export interface DownloadProgress {
  readonly file: string;
  readonly receivedBytes: number;
  /** undefined when the hub does not tell. */
  readonly totalBytes: number | undefined;
}

/** A file of a repository on the hub. Checked by `parseModelSource`; nothing else may make one from foreign text. */
export interface HfFile {
  /** `org/name` */
  readonly repo: string;
  readonly revision: string;
  /** Path inside the repository, with `/`. */
  readonly file: string;
}

/** However often the connection breaks after some progress. */
const maxTotalAttempts = 100;
const maxBackoffMs = 30_000;

/**
 * Puts one file into the hub cache, in the layout that all Hugging Face tools share, and returns its path.
 *
 * ```
 * models--org--name/refs/main                  -> commit
 *                  /snapshots/<commit>/<file>  -> link to the blob
 *                  /blobs/<etag>               contents, complete and checked
 *                  /blobs/<etag>.incomplete    what a later attempt goes on from
 * ```
 *
 * Throws `model_unavailable`. When the network fails and the cache has the file, the cache serves.
 */
export async function downloadFile(wanted: HfFile, options: HfDownloadOptions, signal: AbortSignal): Promise<string> {
  const folder = repositoryFolder(options.cacheDir, wanted.repo);
  const cached = await cachedFile(folder, wanted);
  const pinned = /^[0-9a-f]{40}$/.test(wanted.revision);
  if (cached !== undefined && (pinned || options.offline === true)) return cached;
  if (options.offline === true) {
    throw new StatorError(
      "model_unavailable",
      `${wanted.repo}/${wanted.file} is not in the cache (${options.cacheDir}), and HF_HUB_OFFLINE forbids to download it.`,
    );
  }
  const client = new HfClient(options);
  let info: HfFileInfo;
  try {
    info = await withRetries(options, signal, () => client.fileInfo(wanted.repo, wanted.revision, wanted.file, signal));
  } catch (error) {
    if (error instanceof TransientFailure && cached !== undefined) return cached;
    throw asStatorError(error);
  }
  const blob = join(folder, "blobs", info.etag);
  const snapshot = join(folder, "snapshots", info.commit, ...wanted.file.split("/"));
  try {
    await mkdir(dirname(blob), { recursive: true });
    await withLock(`${blob}.lock`, signal, async () => {
      if (!(await isComplete(blob, info))) await fetchBlob(client, wanted, info, blob, options, signal);
    });
    await link(blob, snapshot);
    await writeRef(folder, wanted.revision, info.commit);
  } catch (error) {
    throw asStatorError(error);
  }
  return snapshot;
}

/** The names of a repository's files. Offline: of those in the cache. */
export async function listFiles(
  repo: string,
  revision: string,
  options: HfDownloadOptions,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const fromCache = async (): Promise<readonly string[]> => {
    const folder = repositoryFolder(options.cacheDir, repo);
    const commit = await commitOf(folder, revision);
    const root = join(folder, "snapshots", commit ?? "");
    const entries = commit === undefined ? [] : await readdir(root, { recursive: true }).catch(() => []);
    return entries.map((name) => name.replaceAll("\\", "/"));
  };
  if (options.offline === true) return await fromCache();
  try {
    const client = new HfClient(options);
    return (await withRetries(options, signal, () => client.repository(repo, revision, signal))).files;
  } catch (error) {
    if (error instanceof TransientFailure) {
      const names = await fromCache();
      if (names.length > 0) return names;
    }
    throw asStatorError(error);
  }
}

async function fetchBlob(
  client: HfClient,
  wanted: HfFile,
  info: HfFileInfo,
  blob: string,
  options: HfDownloadOptions,
  signal: AbortSignal,
): Promise<void> {
  const incomplete = `${blob}.incomplete`;
  let mismatches = 0;
  for (;;) {
    await receive(client, wanted, info, incomplete, options, signal);
    if (await hasDigest(incomplete, info.etag, signal)) break;
    await rm(incomplete, { force: true });
    // The first time, a damaged piece of an earlier attempt may be the cause.
    if (++mismatches === 2) {
      throw new StatorError("model_unavailable", `The checksum of ${wanted.repo}/${wanted.file} is wrong; not used.`);
    }
  }
  await rename(incomplete, blob);
}

/** Receives all bytes into `path`, going on from what is there. */
async function receive(
  client: HfClient,
  wanted: HfFile,
  info: HfFileInfo,
  path: string,
  options: HfDownloadOptions,
  signal: AbortSignal,
): Promise<void> {
  const size = async (): Promise<number> => (await stat(path).catch(() => undefined))?.size ?? 0;
  let fruitless = 0;
  for (let total = 1; ; total++) {
    const before = await size();
    try {
      await receiveOnce(client, wanted, info, path, options, signal);
      return;
    } catch (error) {
      fruitless = (await size()) > before ? 1 : fruitless + 1;
      if (!(error instanceof TransientFailure) || total >= maxTotalAttempts || fruitless >= maxAttempts(options))
        throw error;
    }
    await backOff(fruitless, options, signal);
  }
}

async function receiveOnce(
  client: HfClient,
  wanted: HfFile,
  info: HfFileInfo,
  path: string,
  options: HfDownloadOptions,
  signal: AbortSignal,
): Promise<void> {
  let start = (await stat(path).catch(() => undefined))?.size ?? 0;
  if (info.sizeBytes !== undefined && start > info.sizeBytes) {
    await rm(path, { force: true });
    start = 0;
  }
  if (info.sizeBytes !== undefined && start === info.sizeBytes && start > 0) return;
  const response = await client.download(info.url, start, signal);
  if (response.statusCode === 416) {
    await response.body.dump();
    await rm(path, { force: true });
    throw new TransientFailure("The server cannot go on from what is there; starting again.");
  }
  const range = /^bytes (\d+)-/.exec(String(response.headers["content-range"] ?? ""))?.[1];
  if (response.statusCode === 206 && Number(range) !== start) {
    await response.body.dump();
    throw new TransientFailure("The server sent another range than the one asked for.");
  }
  if (response.statusCode !== 206) start = 0;
  const file = await open(path, start > 0 ? "r+" : "w");
  let position = start;
  try {
    for await (const piece of response.body as AsyncIterable<Buffer>) {
      if (info.sizeBytes !== undefined && position + piece.length > info.sizeBytes) {
        throw new StatorError("model_unavailable", `The server sent more bytes of ${wanted.file} than it announced.`);
      }
      await file.write(piece, 0, piece.length, position);
      position += piece.length;
      options.onProgress?.({ file: wanted.file, receivedBytes: position, totalBytes: info.sizeBytes });
    }
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof StatorError) throw cause;
    const { code } = cause as NodeJS.ErrnoException;
    if (code === "ENOSPC" || code === "EDQUOT" || code === "EIO") throw cause;
    throw new TransientFailure(`The download broke: ${reasonOf(cause)}`, { cause });
  } finally {
    await file.close();
    response.body.destroy();
  }
  if (info.sizeBytes !== undefined && position < info.sizeBytes) {
    throw new TransientFailure(`The download ended after ${position} of ${info.sizeBytes} bytes.`);
  }
}

/** Repeats `work` while it fails in a transient way. */
async function withRetries<T>(options: HfDownloadOptions, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  for (let failures = 1; ; failures++) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof TransientFailure) || failures >= maxAttempts(options)) throw error;
    }
    await backOff(failures, options, signal);
  }
}

function maxAttempts(options: HfDownloadOptions): number {
  return options.maxAttempts ?? 5;
}

async function backOff(failures: number, options: HfDownloadOptions, signal: AbortSignal): Promise<void> {
  const wait = Math.min(maxBackoffMs, (options.backoffMs ?? 1000) * 2 ** (failures - 1));
  await sleep(wait, undefined, { signal });
}

async function hasDigest(path: string, etag: string, signal: AbortSignal): Promise<boolean> {
  const isSha256 = /^[0-9a-f]{64}$/.test(etag);
  const isGitBlob = /^[0-9a-f]{40}$/.test(etag);
  if (!isSha256 && !isGitBlob) return true; // a mirror's own naming; the size was checked
  const hash = createHash(isSha256 ? "sha256" : "sha1");
  if (isGitBlob) hash.update(`blob ${(await stat(path)).size}\0`);
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20, signal })) hash.update(piece as Buffer);
  return hash.digest("hex") === etag;
}

async function isComplete(blob: string, info: HfFileInfo): Promise<boolean> {
  const found = await stat(blob).catch(() => undefined);
  return found !== undefined && (info.sizeBytes === undefined || found.size === info.sizeBytes);
}

async function cachedFile(folder: string, wanted: HfFile): Promise<string | undefined> {
  const commit = await commitOf(folder, wanted.revision);
  if (commit === undefined) return undefined;
  const path = join(folder, "snapshots", commit, ...wanted.file.split("/"));
  return await stat(path).then(
    () => path,
    () => undefined,
  );
}

async function commitOf(folder: string, revision: string): Promise<string | undefined> {
  if (/^[0-9a-f]{40}$/.test(revision)) return revision;
  const text = await readFile(join(folder, "refs", ...revision.split("/")), "utf8").catch(() => "");
  return /^[0-9a-f]{40}$/.exec(text.trim())?.[0];
}

async function link(blob: string, snapshot: string): Promise<void> {
  await mkdir(dirname(snapshot), { recursive: true });
  const temporary = `${snapshot}.${randomUUID()}`;
  // Not every file system knows links.
  await symlink(relative(dirname(snapshot), blob), temporary).catch(() => copyFile(blob, temporary));
  await rename(temporary, snapshot);
}

async function writeRef(folder: string, revision: string, commit: string): Promise<void> {
  if (revision === commit) return;
  const ref = join(folder, "refs", ...revision.split("/"));
  await mkdir(dirname(ref), { recursive: true });
  const temporary = `${ref}.${randomUUID()}`;
  await writeFile(temporary, commit);
  await rename(temporary, ref);
}

function repositoryFolder(cacheDir: string, repo: string): string {
  return join(cacheDir, `models--${repo.replaceAll("/", "--")}`);
}

function asStatorError(error: unknown): unknown {
  if (error instanceof StatorError || (error instanceof Error && error.name === "AbortError")) return error;
  return new StatorError("model_unavailable", `The download failed: ${reasonOf(error)}`, { cause: error });
}

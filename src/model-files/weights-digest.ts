import { createHash, randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, readFile, realpath, rename, stat, unlink, writeFile } from "node:fs/promises";
import { basename, dirname } from "node:path";

/** Entries that the cache file keeps. */
const maxEntries = 256;

/**
 * SHA-256 of a weights file, in hex. Quick where it can be: a blob of the Hugging Face cache is named by its digest,
 * and `cacheFile` remembers digests by path, size and modification time. A cache that cannot be read or written costs
 * time only.
 */
export async function weightsDigest(
  path: string,
  options: { cacheFile?: string; signal?: AbortSignal } = {},
): Promise<string> {
  const real = await realpath(path);
  const name = basename(real);
  if (/^[0-9a-f]{64}$/.test(name)) return name;
  const { size, mtimeMs } = await stat(real);
  const key = `${real}\n${size}\n${mtimeMs}`;
  const cached = options.cacheFile === undefined ? {} : await readCache(options.cacheFile);
  const known = cached[key];
  if (known !== undefined) return known;

  const hash = createHash("sha256");
  const stream = createReadStream(real, {
    highWaterMark: 1 << 20,
    ...(options.signal ? { signal: options.signal } : {}),
  });
  for await (const piece of stream) hash.update(piece as Buffer);
  const digest = hash.digest("hex");
  if (options.cacheFile !== undefined) await writeCache(options.cacheFile, { ...cached, [key]: digest });
  return digest;
}

async function readCache(file: string): Promise<Record<string, string>> {
  try {
    const parsed: unknown = JSON.parse(await readFile(file, "utf8"));
    if (typeof parsed !== "object" || parsed === null) return {};
    return Object.fromEntries(
      Object.entries(parsed).filter(([, digest]) => typeof digest === "string" && /^[0-9a-f]{64}$/.test(digest)),
    );
  } catch {
    return {};
  }
}

async function writeCache(file: string, entries: Record<string, string>): Promise<void> {
  const temporary = `${file}.${randomUUID()}`;
  try {
    await mkdir(dirname(file), { recursive: true });
    await writeFile(temporary, JSON.stringify(Object.fromEntries(Object.entries(entries).slice(-maxEntries))));
    await rename(temporary, file);
  } catch {
    await unlink(temporary).catch(() => undefined);
  }
}

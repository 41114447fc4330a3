import { createHash } from "node:crypto";
import { open, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { StatorError } from "../../protocol/errors.ts";
import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import { MAX_RECORD_BYTES, readInstanceRecord } from "./instance-schema.ts";
import type { ProcessIdentity } from "./process-identity.ts";

/*
 * A worker in the discovery folder is one file, written under a temporary name and renamed:
 *
 *   <escaped key>.json   {"version":1,"record":{...},"process":{...},"beat":"..."}
 *   .stator-<random>           being written
 */

/** A record and a little around it. */
export const MAX_FILE_BYTES = MAX_RECORD_BYTES + 1024;
export const TEMPORARY_PREFIX = ".stator-";
export const FILE_SUFFIX = ".json";
const VERSION = 1;
const MAX_NAME_LENGTH = 100;

const fileSchema = z.looseObject({
  version: z.literal(VERSION),
  process: z.object({ pid: z.number().int().nonnegative(), machine: z.string(), startedAt: z.string() }),
  beat: z.string().optional(),
  record: z.unknown(),
});

export interface InstanceFile {
  readonly record: InstanceRecord;
  readonly process: ProcessIdentity;
  /** Files of one beat are renewed by turns: each one's time stamp speaks for all. Absent = it speaks for itself. */
  readonly beat?: string | undefined;
}

/** A plain file name for an {@link instanceKey}; no two keys share one. */
export function fileNameOf(key: string): string {
  const escaped = Buffer.from(key.replaceAll("/", "+"))
    .toString("latin1")
    .replace(/[^A-Za-z0-9_+-]/g, (char) => `%${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
  if (escaped.length <= MAX_NAME_LENGTH) return escaped + FILE_SUFFIX;
  const digest = createHash("sha256").update(key).digest("hex").slice(0, 32);
  return `${escaped.slice(0, MAX_NAME_LENGTH - 40)}~${digest}${FILE_SUFFIX}`;
}

/** The content of a file, or why it is none. */
export function parseInstanceFile(name: string, text: string): InstanceFile | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return "it is not JSON";
  }
  const parsed = fileSchema.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    return `${issue?.path.join(".") || "content"}: ${issue?.message ?? "invalid"}`;
  }
  const record = readInstanceRecord(parsed.data.record);
  if (typeof record === "string") return record;
  if (fileNameOf(instanceKey(record)) !== name) return "its name does not belong to its worker id";
  return { record, process: parsed.data.process, beat: parsed.data.beat };
}

/** Writes or replaces the worker's file in one step; gives back its inode, by which the owner knows it again. */
export async function writeInstanceFile(folder: string, content: InstanceFile): Promise<bigint> {
  const text = JSON.stringify({ version: VERSION, ...content });
  if (Buffer.byteLength(text) > MAX_FILE_BYTES)
    throw new RangeError(`an instance record has over ${MAX_FILE_BYTES} bytes`);
  // Nobody would show it: better to hear so from the worker than to miss it everywhere else.
  const name = fileNameOf(instanceKey(content.record));
  const parsed = parseInstanceFile(name, text);
  if (typeof parsed === "string") {
    throw new StatorError("invalid_value", `The worker cannot be registered: ${parsed}.`);
  }
  const temporary = join(folder, TEMPORARY_PREFIX + uniqueId());
  try {
    const handle = await open(temporary, "wx", 0o600);
    let inode: bigint;
    try {
      await handle.writeFile(text);
      inode = (await handle.stat({ bigint: true })).ino;
    } finally {
      await handle.close();
    }
    await rename(temporary, join(folder, name));
    return inode;
  } catch (thrown) {
    await rm(temporary, { force: true }).catch(() => {});
    throw thrown;
  }
}

export type TouchResult = "touched" | "missing" | "replaced";

/** Renews the file's time stamp, by the clock of the file system: the first byte is written again. */
export async function touchInstanceFile(path: string, inode: bigint): Promise<TouchResult> {
  let handle: Awaited<ReturnType<typeof open>>;
  try {
    handle = await open(path, "r+");
  } catch (thrown) {
    if (isMissing(thrown)) return "missing";
    throw thrown;
  }
  try {
    if ((await handle.stat({ bigint: true })).ino !== inode) return "replaced";
    await handle.write("{", 0);
    return "touched";
  } finally {
    await handle.close();
  }
}

export function isMissing(thrown: unknown): boolean {
  return (thrown as NodeJS.ErrnoException).code === "ENOENT";
}

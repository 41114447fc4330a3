import { mkdir, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { StatorError } from "../../protocol/errors.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import { TEMPORARY_PREFIX } from "./instance-file.ts";

/** Makes the folder when it is missing, for this user only, and refuses one into which others may write. */
export async function prepareFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const { mode, uid } = await stat(folder);
  const self = process.getuid?.();
  if (self === undefined) return; // Windows: access lists instead of modes
  if ((mode & 0o022) !== 0 || (uid !== self && self !== 0)) {
    throw new StatorError(
      "invalid_value",
      `The discovery folder ${folder} must belong to this user and be writable by nobody else.`,
      { param: "discovery" },
    );
  }
}

/** Milliseconds since the epoch as the file system counts them (a network share has a clock of its own). */
export async function fileSystemNow(folder: string): Promise<number> {
  const probe = join(folder, TEMPORARY_PREFIX + uniqueId());
  try {
    await writeFile(probe, "", { mode: 0o600, flag: "wx" });
    return (await stat(probe)).mtimeMs;
  } finally {
    await rm(probe, { force: true });
  }
}

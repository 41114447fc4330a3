import { rmSync } from "node:fs";
import { mkdtemp, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PREFIX = "stator-serve-";

/** A folder for one `serve`, named after its process; folders of processes that were killed are swept away. */
export async function makePrivateFolder(): Promise<{ path: string; remove(): void }> {
  await sweep();
  const path = await mkdtemp(join(tmpdir(), `${PREFIX}${process.pid}-`));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

async function sweep(): Promise<void> {
  for (const name of await readdir(tmpdir()).catch(() => [])) {
    const pid = new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1];
    if (pid === undefined || isRunning(Number(pid)) || (await isInUse(join(tmpdir(), name)))) continue;
    // Somebody else's folder cannot be removed, and need not be.
    await rm(join(tmpdir(), name), { recursive: true, force: true }).catch(() => {});
  }
}

/** In another container that shares the folder the pid means nothing; workers renew their files every few seconds. */
async function isInUse(folder: string): Promise<boolean> {
  const files = await readdir(folder).catch(() => []);
  const ages = await Promise.all(
    [".", ...files].map((file) =>
      stat(join(folder, file)).then(
        ({ mtimeMs }) => Date.now() - mtimeMs,
        () => Infinity,
      ),
    ),
  );
  return Math.min(...ages) < 60_000;
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

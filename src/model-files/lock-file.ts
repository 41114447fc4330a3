import { open, readFile, rm, stat, utimes } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

/** The holder touches its lock so often; one untouched for the longer time belongs to nobody any more. */
const touchMs = 5_000;
const staleMs = 30_000;
const pollMs = 200;

/** Runs `work` while no other process of this machine, or of another on the same disk, runs under the same lock. */
export async function withLock<T>(path: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  for (;;) {
    signal.throwIfAborted();
    try {
      const file = await open(path, "wx");
      await file.writeFile(String(process.pid));
      await file.close();
      break;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
    if (await isStale(path)) await rm(path, { force: true });
    else await sleep(pollMs, undefined, { signal });
  }
  const timer = setInterval(() => {
    const now = new Date();
    utimes(path, now, now).catch(() => undefined);
  }, touchMs);
  try {
    return await work();
  } finally {
    clearInterval(timer);
    await rm(path, { force: true });
  }
}

async function isStale(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => undefined);
  if (found === undefined) return false; // released meanwhile
  if (Date.now() - found.mtimeMs > staleMs) return true;
  const pid = Number(await readFile(path, "utf8").catch(() => ""));
  if (!Number.isInteger(pid) || pid <= 0) return false; // just being written
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    // ESRCH may also mean another machine; there the touches count.
    return (error as NodeJS.ErrnoException).code === "ESRCH" && Date.now() - found.mtimeMs > 2 * touchMs;
  }
}

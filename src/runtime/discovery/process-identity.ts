import { readFileSync, readlinkSync } from "node:fs";
import { hostname } from "node:os";

/** Enough to tell whether a process still runs, even when its pid has been given to another one since. */
export interface ProcessIdentity {
  readonly pid: number;
  /** Where the pid means something: boot and pid namespace on Linux, the host name elsewhere. */
  readonly machine: string;
  /** When the process started, in the kernel's own unit; empty where it is not known. */
  readonly startedAt: string;
}

const machine = thisMachine();

export function identityOf(pid: number): ProcessIdentity {
  return { pid, machine, startedAt: processStart(pid) ?? "" };
}

/** True only when it is certain: the process was on this machine and is not there any more. */
export function isGone(identity: ProcessIdentity): boolean {
  if (identity.machine !== machine || identity.pid === process.pid) return false;
  try {
    process.kill(identity.pid, 0);
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ESRCH") return true; // EPERM: it runs under another user
  }
  if (identity.startedAt === "") return false;
  const startedAt = processStart(identity.pid);
  return startedAt === "dead" || (startedAt !== undefined && startedAt !== identity.startedAt);
}

/** Field 22 of /proc/PID/stat (proc(5)); "dead" for a zombie; undefined where there is no /proc. */
function processStart(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" "); // the name before may contain anything
    return fields[0] === "Z" || fields[0] === "X" ? "dead" : fields[19];
  } catch {
    return undefined;
  }
}

function thisMachine(): string {
  try {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim();
    return `${boot} ${readlinkSync("/proc/self/ns/pid")}`;
  } catch {
    return hostname();
  }
}

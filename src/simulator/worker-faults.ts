import type { ActiveFaults } from "../mocker/active-faults.ts";
import type { FaultKind } from "../mocker/fault-script.ts";
import type { WorkerPool } from "./worker-pool.ts";

/** What a fault does to the engine of a worker; links and requests are the fleet's. */
export function applyToEngine(
  pool: WorkerPool,
  worker: number,
  kind: FaultKind,
  active: ActiveFaults,
  nowMs: number,
): void {
  const { faults } = pool.engine(worker);
  if (kind === "kill") {
    if (active.has("kill")) pool.kill(worker, nowMs);
    else pool.restart(worker, nowMs);
  }
  // One that comes back comes back into the freeze that holds for it.
  if (kind === "freeze" || kind === "kill") {
    if (active.has("kill")) return;
    if (active.has("freeze")) faults.freeze(nowMs, Number.POSITIVE_INFINITY);
    else faults.thaw(nowMs);
  }
  if (kind === "slowDown") faults.slowDown(active.factor);
  if (kind === "dropEvents") faults.dropKvEvents(active.has("dropEvents"));
  pool.touched(worker);
}

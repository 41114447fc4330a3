import { WorkerHost, type WorkerHostOptions } from "../../engines/host/worker-host.ts";
import type { Config } from "../config/config.ts";

/** The host of one engine, with the configured limits. */
export function configuredHost(
  config: Config,
  parts: Pick<
    WorkerHostOptions,
    "engine" | "server" | "discovery" | "workerId" | "epoch" | "health" | "metrics" | "wheel" | "logger" | "onUnhealthy"
  >,
): WorkerHost {
  return new WorkerHost({
    ...parts,
    codec: config.get("requestPlane.codec"),
    namespace: config.get("discovery.namespace"),
    canaryIdleMs: config.get("engine.canaryIdleMs"),
    maxQueued: config.get("queue.perWorker"),
    queueTimeoutMs: config.get("queue.timeoutMs"),
    stallTimeoutMs: config.get("engine.stallTimeoutMs"),
    drainTimeoutMs: config.get("shutdown.drainTimeoutMs"),
  });
}

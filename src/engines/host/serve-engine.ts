import type { Engine } from "../../protocol/engine.ts";
import type { WorkerRecord } from "../../protocol/instance.ts";
import type { Runtime } from "../../runtime/component/runtime.ts";
import { WorkerHost, type WorkerHostOptions } from "./worker-host.ts";

export type ServeEngineOptions = Omit<WorkerHostOptions, "engine" | "server" | "discovery" | "workerId" | "epoch">;

export interface ServedEngine {
  readonly record: WorkerRecord;
  /** Leaves discovery, lets running requests end or hands them over, closes the engine and the runtime. Never rejects. */
  shutdown(): Promise<void>;
}

/**
 * Makes an engine a worker of the fleet: frontends find it and serve its model. An engine that turns out unhealthy is shut
 * down, unless `onUnhealthy` does something else.
 */
export async function serveEngine(
  runtime: Runtime,
  engine: Engine,
  options: ServeEngineOptions = {},
): Promise<ServedEngine> {
  const { discovery, server, logger } = runtime.parts;
  const host = new WorkerHost({
    onUnhealthy: () => {
      host.hurry();
      void shutdown();
    },
    ...(logger === undefined ? {} : { logger }),
    health: runtime.health,
    metrics: runtime.metrics,
    ...options,
    engine,
    server,
    discovery,
    workerId: runtime.instanceId,
    epoch: runtime.epoch,
  });
  runtime.show(host);
  const shutdown = async (): Promise<void> => {
    await host.shutdown();
    await runtime.shutdown();
  };
  try {
    return { record: await host.start(), shutdown };
  } catch (error) {
    await shutdown();
    throw error;
  }
}

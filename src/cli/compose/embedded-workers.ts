import type { WorkerHost } from "../../engines/host/worker-host.ts";
import type { Discovery } from "../../runtime/discovery/discovery.ts";
import { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import { type MemoryNetwork, MemoryRequestPlaneServer } from "../../runtime/request-plane/memory.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import type { Config } from "../config/config.ts";
import { configuredEngine } from "./engine.ts";
import { configuredFaults, type LiveFaults } from "./live-faults.ts";
import type { PreparedModel } from "./model.ts";
import type { OwnWorkers } from "./own-workers.ts";
import { configuredHost } from "./worker-host.ts";

/** The workers of `serve --discovery memory`: engines in this process, for debugging and embedding. */
export class EmbeddedWorkers implements OwnWorkers {
  readonly names: readonly string[];
  readonly #parts: EmbeddedParts;
  readonly #running: WorkerHost[] = [];
  readonly #wheel = new TimerWheel();
  #faults: LiveFaults | undefined;

  constructor(parts: EmbeddedParts) {
    this.#parts = parts;
    this.names = Array.from({ length: parts.config.get("workers") }, (_, i) => `worker-${i + 1}`);
  }

  async start(): Promise<void> {
    const { config, model, network, discovery, logger } = this.#parts;
    const wheel = this.#wheel;
    this.#faults = configuredFaults(config, this.names, logger);
    this.#faults?.start();
    for (const workerId of this.names) {
      const engine = await configuredEngine(config, model, logger);
      this.#faults?.adopt(workerId, engine);
      const server = new MemoryRequestPlaneServer(workerId, { network, logger, wheel });
      const onUnhealthy = (reason: string): void =>
        logger.error({ workerId, reason }, "an embedded worker is unhealthy");
      const host = configuredHost(config, { engine, server, discovery, workerId, wheel, logger, onUnhealthy });
      this.#running.push(host);
      await host.start();
    }
  }

  problems(): readonly string[] {
    return [];
  }

  hopeless(): undefined {
    return undefined;
  }

  async stop(): Promise<void> {
    this.#faults?.stop();
    await Promise.all(this.#running.splice(0).map((host) => host.shutdown()));
    this.#wheel.close();
  }

  kill(): void {}
}

interface EmbeddedParts {
  readonly config: Config;
  readonly model: PreparedModel | undefined;
  readonly network: MemoryNetwork;
  readonly discovery: Discovery;
  readonly logger: Logger;
}

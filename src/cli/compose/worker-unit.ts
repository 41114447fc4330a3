import { WorkerGroup } from "../../engines/host/worker-group.ts";
import type { WorkerHost } from "../../engines/host/worker-host.ts";
import type { WorkerRecord } from "../../protocol/instance.ts";
import type { Runtime } from "../../runtime/component/runtime.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { configuredEngine } from "./engine.ts";
import type { LiveFaults } from "./live-faults.ts";
import { prepareModel } from "./model.ts";
import { configuredHost } from "./worker-host.ts";

/** What a worker process serves: one engine, or many simulated ones. */
export interface WorkerUnit {
  readonly workers: number;
  /** Loads, listens, registers. The record is that of the first worker; undefined when it was stopped meanwhile. */
  start(): Promise<WorkerRecord | undefined>;
  /** Unregisters, drains, closes. Never rejects. */
  shutdown(): Promise<unknown>;
  /** Ends the drain phase now. */
  hurry(): void;
}

/**
 * `onUnhealthy`: the process should end and be started again. `openPort` is awaited when there is something to show, before
 * the registration.
 */
export function configuredUnit(
  config: Config,
  parts: {
    runtime: Runtime;
    logger: Logger;
    faults?: LiveFaults;
    onUnhealthy: () => void;
    openPort: () => Promise<void>;
  },
): WorkerUnit {
  const count = config.get("worker.count");
  const kind = config.get("engine.kind");
  if (count === 1) return new SingleWorker(config, parts);
  if (kind === "mocker" || kind === "echo") return new ManyWorkers(config, parts, count);
  throw new ConfigError(
    `worker.count = ${count}: only the engines mocker and echo can have several workers in one process, not ${kind}; ` +
      "start a process for each, or let stator serve --workers do it.",
  );
}

/** Ids of the workers of a process; `name`: the process's own. */
export function workerIds(config: Config, name: string): readonly string[] {
  const count = config.get("worker.count");
  return count === 1 ? [name] : Array.from({ length: count }, (_, i) => `${name}-${i + 1}`);
}

type Parts = Parameters<typeof configuredUnit>[1];

class SingleWorker implements WorkerUnit {
  readonly workers = 1;
  readonly #config: Config;
  readonly #parts: Parts;
  #host: WorkerHost | undefined;

  constructor(config: Config, parts: Parts) {
    this.#config = config;
    this.#parts = parts;
  }

  async start(): Promise<WorkerRecord> {
    const { runtime, logger, faults, onUnhealthy, openPort } = this.#parts;
    const engine = await configuredEngine(this.#config, await prepareModel(this.#config, logger), logger);
    const { discovery, server } = runtime.parts;
    const { instanceId: workerId, epoch, health, metrics } = runtime;
    faults?.adopt(workerId, engine);
    const host = configuredHost(this.#config, {
      ...{ engine, server, discovery, workerId, epoch, health, metrics, logger, onUnhealthy },
    });
    this.#host = host;
    runtime.show(host);
    await openPort();
    return host.start();
  }

  async shutdown(): Promise<void> {
    await this.#host?.shutdown();
  }

  hurry(): void {
    this.#host?.hurry();
  }
}

class ManyWorkers implements WorkerUnit {
  readonly workers: number;
  readonly #group: WorkerGroup;
  readonly #parts: Parts;

  constructor(config: Config, parts: Parts, count: number) {
    const { runtime, logger, faults } = parts;
    const { discovery, server } = runtime.parts;
    this.workers = count;
    this.#parts = parts;
    this.#group = new WorkerGroup({
      name: runtime.instanceId,
      count,
      server,
      health: runtime.health,
      metrics: runtime.metrics,
      logger,
      makeHost: async (member) => {
        const engine = await configuredEngine(config, undefined, logger);
        faults?.adopt(member.workerId, engine);
        return configuredHost(config, { ...member, engine, discovery, logger });
      },
    });
  }

  async start(): Promise<WorkerRecord | undefined> {
    const { runtime, openPort } = this.#parts;
    runtime.show(this.#group.hosts);
    await openPort();
    return this.#group.start();
  }

  shutdown(): Promise<void> {
    return this.#group.shutdown();
  }

  hurry(): void {
    this.#group.hurry();
  }
}

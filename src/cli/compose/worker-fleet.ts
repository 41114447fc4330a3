import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { SupervisedProcess, type SupervisedState } from "../../runtime/lifecycle/supervised-process.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import type { Config } from "../config/config.ts";
import type { ConfigName } from "../config/config-keys.ts";
import type { PreparedModel } from "./model.ts";
import type { OwnWorkers } from "./own-workers.ts";

export interface FleetOptions {
  readonly config: Config;
  /** Here already, so that a download happens once. */
  readonly model: PreparedModel | undefined;
  /** `file:DIR` or `etcd://...`. */
  readonly discovery: string;
  readonly namePrefix: string;
  readonly logger: Logger;
}

const meaning: Record<SupervisedState, string> = {
  starting: "is starting",
  ready: "is ready",
  waiting: "has ended and is started again soon",
  failed: "cannot run with this configuration",
  stopped: "was stopped",
};

/** The worker processes of `serve`. */
export class WorkerFleet implements OwnWorkers {
  readonly #processes: readonly SupervisedProcess[];

  constructor({ config, model, discovery, namePrefix, logger }: FleetOptions) {
    const script = fileURLToPath(new URL("../main.js", import.meta.url));
    const env = { ...childEnvironment(process.env), ...config.secretEnvironment(workerSecrets) };
    const faultsSince = String(config.get("faults.since") || Date.now());
    this.#processes = Array.from({ length: config.get("workers") }, (_, i) => {
      const name = `${namePrefix}${i + 1}`;
      const args = config.toArguments({
        discovery,
        "worker.id": name,
        "worker.count": "1",
        "worker.port": "0",
        "system.port": "0",
        // One clock for all, also for those that are started again.
        ...(config.get("faults.script") !== "" && { "faults.since": faultsSince }),
        ...(model === undefined ? {} : { "model.source": model.source, "model.name": model.name }),
        "engine.threads": String(threadsPerWorker(config)),
      });
      return new SupervisedProcess({ name, script, args: ["worker", ...args], env, logger });
    });
  }

  get names(): readonly string[] {
    return this.#processes.map(({ name }) => name);
  }

  start(): void {
    for (const worker of this.#processes) worker.start();
  }

  problems(): readonly string[] {
    return this.#processes
      .filter(({ state }) => state !== "ready")
      .map(({ name, state }) => `${name}: ${meaning[state]}`);
  }

  hopeless(): string | undefined {
    const failed = this.#processes.find(({ state }) => state === "failed");
    return failed && `${failed.name} cannot run with this configuration; its message is above.`;
  }

  async stop(graceMs: number): Promise<void> {
    await Promise.all(this.#processes.map((worker) => worker.stop(graceMs)));
  }

  kill(): void {
    for (const worker of this.#processes) worker.kill();
  }
}

/** What a worker must prove or show to others; arguments can be seen by every user of the machine. */
const workerSecrets: readonly ConfigName[] = [
  "discovery.etcdPassword",
  "requestPlane.secret",
  "requestPlane.natsPassword",
  "requestPlane.natsToken",
  "system.token",
];

/** Without what the arguments say already, and without secrets that a worker does not need: its model is here. */
function childEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const dropped = /^(STATOR_.*|HF_TOKEN|HUGGING_FACE_HUB_TOKEN)$/;
  return Object.fromEntries(Object.entries(env).filter(([name]) => !dropped.test(name)));
}

/**
 * The cores that the frontend leaves, divided by the workers, at least 1: llama.cpp's threads wait for each other by
 * spinning, and more threads than free cores make it slower by orders of magnitude.
 */
export function threadsPerWorker(config: Config): number {
  const configured = config.get("engine.threads");
  if (configured > 0) return configured;
  return Math.max(1, Math.floor((availableParallelism() - 1) / Math.max(1, config.get("workers"))));
}

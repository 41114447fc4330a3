import { StatorError } from "../../protocol/errors.ts";
import { MemoryDiscovery, MemoryStore } from "../../runtime/discovery/memory.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { MemoryNetwork, MemoryRequestPlaneClient } from "../../runtime/request-plane/memory.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { configuredDiscovery, discoveryAddress } from "../compose/discovery.ts";
import { EmbeddedWorkers } from "../compose/embedded-workers.ts";
import { servedName } from "../compose/engine.ts";
import { checkFleetFaults } from "../compose/live-faults.ts";
import { configuredLogger } from "../compose/logger.ts";
import { type PreparedModel, prepareModel } from "../compose/model.ts";
import type { OwnWorkers } from "../compose/own-workers.ts";
import { configuredPlaneClient } from "../compose/planes.ts";
import { makePrivateFolder } from "../compose/private-folder.ts";
import { runUntilStopped } from "../compose/run-until-stopped.ts";
import { type RunningFrontend, startFrontend } from "../compose/running-frontend.ts";
import { dieOf, onStopSignals } from "../compose/stop-signals.ts";
import { configuredTracing } from "../compose/tracing.ts";
import { WorkerFleet } from "../compose/worker-fleet.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { startScreen } from "../start-screen.ts";

/** Each takes tens of MB at least. */
const MAX_PROCESSES = 256;
/** How long a worker may take to end after the frontend has drained, and when somebody waits. */
const WORKER_GRACE_MS = 5_000;
const HURRIED_GRACE_MS = 500;

/** `stator serve`: a frontend here, workers in processes of their own, until a signal comes. */
export async function serve(config: Config, version: string): Promise<void> {
  const count = config.get("workers");
  if (count === 0) {
    throw new ConfigError(
      "stator serve: with --workers 0 nothing would serve; for a frontend alone run stator frontend.",
    );
  }
  if (count > MAX_PROCESSES && config.get("discovery") !== "memory") {
    throw new ConfigError(
      `workers = ${count}: stator serve starts at most ${MAX_PROCESSES} processes. For more simulated workers use ` +
        `--discovery memory, or stator worker --engine mocker --count ${count} beside stator frontend.`,
    );
  }
  checkFleetFaults(config);
  const logger = configuredLogger(config, "serve");
  const stopTracing = await configuredTracing(config, "frontend", logger);
  const ignoreSignals = onStopSignals((_count, signal) => dieOf(signal)); // a download may take long
  const model = await prepareModel(config, logger);
  ignoreSignals();
  const place = await makePlace(config, model, logger);
  const { workers } = place;
  let running: RunningFrontend | undefined;
  try {
    running = await startFrontend(config, {
      ...place,
      logger,
      expected: { models: [servedName(config, model)], workers: count },
      reasons: () => workers.problems(),
    });
    const service = running;
    await runUntilStopped({
      frontend: service.frontend,
      logger,
      drainTimeoutMs: config.get("shutdown.drainTimeoutMs"),
      async start(signal) {
        await workers.start();
        await becomeReady(config, service, workers, signal);
        if (signal.aborted) return;
        process.stdout.write(startScreen({ config, version, running: service, workers: workers.names }));
      },
      async close(hurried) {
        // The frontend first: it tells the streams why they end; without it they would hear of lost workers.
        await service.close();
        await workers.stop(hurried ? HURRIED_GRACE_MS : WORKER_GRACE_MS);
      },
      kill() {
        workers.kill();
        place.removeFolder();
      },
    });
  } finally {
    await running?.close();
    await workers.stop(0);
    await place.close();
    place.removeFolder();
    await stopTracing();
  }
}

/** Resolves when all can serve or a stop was asked for; rejects when that is not going to happen. */
function becomeReady(
  config: Config,
  running: RunningFrontend,
  workers: OwnWorkers,
  signal: AbortSignal,
): Promise<void> {
  const timeoutMs = config.get("startup.timeoutMs");
  return new Promise((resolve, reject) => {
    const settle = (error?: Error): void => {
      clearInterval(looker);
      clearImmediate(soon);
      clearTimeout(timer);
      unsubscribe();
      signal.removeEventListener("abort", look);
      if (error) reject(error);
      else resolve();
    };
    let soon: NodeJS.Immediate | undefined;
    const look = (): void => {
      soon = undefined;
      const reason = workers.hopeless();
      if (signal.aborted || running.frontend.health().status === "ok") settle();
      else if (reason !== undefined) settle(new ConfigError(reason));
    };
    // Thousands may join in one turn of the event loop; one look after it is enough.
    const unsubscribe = running.catalog.onChange(() => {
      soon ??= setImmediate(look);
    });
    const looker = setInterval(look, 200);
    const timer = setTimeout(() => {
      const message = `The workers were not ready within ${timeoutMs} ms (startup.timeoutMs).`;
      settle(new StatorError("not_ready", message));
    }, timeoutMs);
    signal.addEventListener("abort", look, { once: true });
    look();
  });
}

/** Where frontend and workers meet, and the workers themselves. */
async function makePlace(config: Config, model: PreparedModel | undefined, logger: Logger) {
  if (config.get("discovery") === "memory") {
    const network = new MemoryNetwork();
    const store = new MemoryStore();
    return {
      discovery: new MemoryDiscovery(store),
      plane: new MemoryRequestPlaneClient({ network }),
      workers: new EmbeddedWorkers({ config, model, network, discovery: new MemoryDiscovery(store), logger }),
      close: () => Promise.resolve(),
      removeFolder: () => {},
    };
  }
  const own = config.get("discovery") === "auto" ? await makePrivateFolder() : undefined;
  const address = own ? `file:${own.path}` : discoveryAddress(config.get("discovery"));
  const discovery = configuredDiscovery(config, logger, "serve", address);
  // In a place shared with others the plain names would collide.
  const namePrefix = own ? "worker-" : `worker-${uniqueId("", 4)}-`;
  return {
    discovery,
    plane: configuredPlaneClient(config, logger),
    workers: new WorkerFleet({ config, model, discovery: address, namePrefix, logger }),
    close: () => discovery.close(),
    removeFolder: () => own?.remove(),
  };
}

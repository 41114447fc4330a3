import { collectDefaultMetrics } from "prom-client";
import { Runtime } from "../../runtime/component/runtime.ts";
import { parentState, reportToParent } from "../../runtime/lifecycle/supervised-process.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { configuredDiscovery } from "../compose/discovery.ts";
import { explainListen } from "../compose/listen-errors.ts";
import { configuredFaults } from "../compose/live-faults.ts";
import { configuredLogger } from "../compose/logger.ts";
import { configuredPlaneClient, configuredPlaneServer } from "../compose/planes.ts";
import { dieOf, onStopSignals } from "../compose/stop-signals.ts";
import { configuredTracing } from "../compose/tracing.ts";
import { configuredUnit, workerIds } from "../compose/worker-unit.ts";
import type { Config } from "../config/config.ts";

/** `stator worker`: one engine, or many simulated ones, on the request plane, until a signal comes or its parent is gone. */
export async function worker(config: Config): Promise<void> {
  const workerId = config.get("worker.id") || uniqueId("worker-", 6);
  const logger = configuredLogger(config, workerId);
  const state = parentState();
  if (state === "gone") return; // nobody would be served, now or later
  const parent = state === "connected" ? reportToParent(() => process.exit(0)) : undefined;
  // A terminal sends Ctrl-C, and its own end, to all processes; the parent drains its workers itself.
  if (parent) for (const signal of ["SIGINT", "SIGHUP"] as const) process.on(signal, () => {});
  const faults = configuredFaults(config, workerIds(config, workerId), logger);
  const runtime = new Runtime({
    instanceId: workerId,
    discovery: configuredDiscovery(config, logger, "worker"),
    client: configuredPlaneClient(config, logger),
    server: configuredPlaneServer(config, logger, faults?.cut),
    logger,
  });
  collectDefaultMetrics({ register: runtime.registry });
  const stopTracing = await configuredTracing(config, "worker", logger);
  let started = false;
  let endNow: (code: number) => void = () => {};
  const ended = new Promise<number>((resolve) => {
    endNow = resolve;
  });
  let systemPort = 0;
  const unit = configuredUnit(config, {
    runtime,
    logger,
    ...(faults && { faults }),
    onUnhealthy: () => endNow(1),
    async openPort() {
      started = true;
      systemPort = await runtime.openSystemPort(systemOptions(config));
    },
  });
  onStopSignals(
    (count, signal) => {
      if (!started) return dieOf(signal); // an engine that is loading cannot be stopped, and nobody knows of it yet
      if (count === 1) endNow(0);
      else if (count === 2) unit.hurry();
      else process.exit(130);
    },
    parent ? ["SIGTERM"] : ["SIGINT", "SIGTERM", "SIGHUP"],
  );

  const start = async (): Promise<void> => {
    const first = await unit.start();
    if (first === undefined) return;
    const { address, card } = first;
    const { workers } = unit;
    logger.info({ address, systemPort, model: card.name, ...(workers > 1 && { workers }) }, "worker ready");
    parent?.ready();
  };

  faults?.start();
  try {
    await Promise.race([start(), ended]);
  } catch (error) {
    faults?.stop();
    await unit.shutdown();
    await runtime.shutdown();
    throw explainListen(error, "worker.host, worker.port, system.host or system.port");
  }

  const code = await ended;
  faults?.stop();
  if (code !== 0) unit.hurry();
  await unit.shutdown();
  await runtime.shutdown();
  await stopTracing();
  parent?.stop();
  // Native threads of an engine that hangs would keep the process.
  process.exit(code);
}

function systemOptions(config: Config) {
  const token = config.get("system.token");
  return { host: config.get("system.host"), port: config.get("system.port"), ...(token === "" ? {} : { token }) };
}

import { collectDefaultMetrics } from "prom-client";
import type { WorkerHost } from "../../engines/host/worker-host.ts";
import { Runtime } from "../../runtime/component/runtime.ts";
import { parentState, reportToParent } from "../../runtime/lifecycle/supervised-process.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { configuredDiscovery } from "../compose/discovery.ts";
import { configuredEngine } from "../compose/engine.ts";
import { explainListen } from "../compose/listen-errors.ts";
import { configuredLogger } from "../compose/logger.ts";
import { prepareModel } from "../compose/model.ts";
import { configuredPlaneClient, configuredPlaneServer } from "../compose/planes.ts";
import { dieOf, onStopSignals } from "../compose/stop-signals.ts";
import { configuredTracing } from "../compose/tracing.ts";
import { configuredHost } from "../compose/worker-host.ts";
import type { Config } from "../config/config.ts";

/** `stator worker`: one engine on the request plane, until a signal comes or its parent is gone. */
export async function worker(config: Config): Promise<void> {
  const workerId = config.get("worker.id") || uniqueId("worker-", 6);
  const logger = configuredLogger(config, workerId);
  const state = parentState();
  if (state === "gone") return; // nobody would be served, now or later
  const parent = state === "connected" ? reportToParent(() => process.exit(0)) : undefined;
  // A terminal sends Ctrl-C, and its own end, to all processes; the parent drains its workers itself.
  if (parent) for (const signal of ["SIGINT", "SIGHUP"] as const) process.on(signal, () => {});
  const runtime = new Runtime({
    instanceId: workerId,
    discovery: configuredDiscovery(config, logger, "worker"),
    client: configuredPlaneClient(config, logger),
    server: configuredPlaneServer(config, logger),
    logger,
  });
  collectDefaultMetrics({ register: runtime.registry });
  const stopTracing = await configuredTracing(config, "worker", logger);
  let host: WorkerHost | undefined;
  let endNow: (code: number) => void = () => {};
  const ended = new Promise<number>((resolve) => {
    endNow = resolve;
  });
  onStopSignals(
    (count, signal) => {
      if (host === undefined) return dieOf(signal); // an engine that is loading cannot be stopped, and nobody knows of it yet
      if (count === 1) endNow(0);
      else if (count === 2) host?.hurry();
      else process.exit(130);
    },
    parent ? ["SIGTERM"] : ["SIGINT", "SIGTERM", "SIGHUP"],
  );
  const start = async (): Promise<void> => {
    const engine = await configuredEngine(config, await prepareModel(config, logger), logger);
    const { discovery, server } = runtime.parts;
    const { epoch, health, metrics } = runtime;
    const onUnhealthy = (): void => endNow(1);
    const parts = { engine, server, discovery, workerId, epoch, health, metrics, logger, onUnhealthy };
    host = configuredHost(config, parts);
    runtime.show(host);
    const systemPort = await runtime.openSystemPort(systemOptions(config));
    const { address, card } = await host.start();
    logger.info({ address, systemPort, model: card.name }, "worker ready");
    parent?.ready();
  };
  try {
    await Promise.race([start(), ended]);
  } catch (error) {
    await host?.shutdown();
    await runtime.shutdown();
    throw explainListen(error, "worker.host, worker.port, system.host or system.port");
  }
  const code = await ended;
  if (code !== 0) host?.hurry();
  await host?.shutdown();
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

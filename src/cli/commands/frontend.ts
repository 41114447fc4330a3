import { configuredDiscovery } from "../compose/discovery.ts";
import { configuredLogger } from "../compose/logger.ts";
import { configuredPlaneClient } from "../compose/planes.ts";
import { runUntilStopped } from "../compose/run-until-stopped.ts";
import { startFrontend } from "../compose/running-frontend.ts";
import { configuredTracing } from "../compose/tracing.ts";
import type { Config } from "../config/config.ts";
import { startScreen } from "../start-screen.ts";

/** `stator frontend`: the HTTP part alone; workers come and go through discovery. */
export async function frontend(config: Config, version: string): Promise<void> {
  const logger = configuredLogger(config, "frontend");
  const discovery = configuredDiscovery(config, logger, "frontend");
  const plane = configuredPlaneClient(config, logger);
  const stopTracing = await configuredTracing(config, "frontend", logger);
  try {
    const running = await startFrontend(config, { discovery, plane, logger, expected: { models: 1, workers: 1 } });
    await runUntilStopped({
      frontend: running.frontend,
      logger,
      drainTimeoutMs: config.get("shutdown.drainTimeoutMs"),
      async start() {
        process.stdout.write(startScreen({ config, version, running }));
      },
      close: () => running.close(),
      kill: () => {},
    });
  } finally {
    await discovery.close();
    await stopTracing();
  }
}

import { StatorError } from "../../protocol/errors.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { startTracing } from "../../runtime/telemetry/tracing.ts";
import type { Config } from "../config/config.ts";

/** Starts span export when a collector is configured. Returns the way to flush and stop it. */
export async function configuredTracing(config: Config, part: string, logger: Logger): Promise<() => Promise<void>> {
  const otlpEndpoint = config.get("tracing.otlpEndpoint");
  if (otlpEndpoint === "") return () => Promise.resolve();
  try {
    return await startTracing({ otlpEndpoint, serviceName: `stator-${part}` });
  } catch (error) {
    // OTEL_EXPORTER_OTLP_ENDPOINT is often set for a whole machine; that alone must not keep Stator from starting.
    if (!(error instanceof StatorError) || !config.isForeign("tracing.otlpEndpoint")) throw error;
    logger.warn(error.message);
    return () => Promise.resolve();
  }
}

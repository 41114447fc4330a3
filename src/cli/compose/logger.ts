import { createLogger, type Logger } from "../../runtime/telemetry/log.ts";
import type { Config } from "../config/config.ts";

/** The process's logger as configured; `part` says who speaks. */
export function configuredLogger(config: Config, part: string): Logger {
  const format = config.get("log.format");
  const settled = format === "auto" ? (process.stderr.isTTY ? "pretty" : "json") : format;
  return createLogger({ level: config.get("log.level"), format: settled, part });
}

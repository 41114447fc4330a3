import { type DestinationStream, type Logger, pino } from "pino";
import { PinoPretty } from "pino-pretty";

export type { Logger } from "pino";

export const logLevels = ["trace", "debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof logLevels)[number];

export interface LogOptions {
  readonly level: LogLevel;
  /** `pretty` for people, `json` for machines. */
  readonly format: "pretty" | "json";
  /** Stands on every line: which process speaks. */
  readonly part: string;
  /** Default: standard error, so that standard output stays clean for results. */
  readonly destination?: DestinationStream;
}

/** Paths of values that must never reach a log, whoever logs the object around them. */
const secretNames = ["authorization", "token", "apiKey", "password", "secret", "sharedSecret"];
const secretPaths = ["headers.authorization", ...secretNames, ...secretNames.map((name) => `*.${name}`)];

export function createLogger({ level, format, part, destination }: LogOptions): Logger {
  const options = { level, base: { part }, redact: { paths: secretPaths, censor: "[hidden]" } };
  if (format === "json") return pino(options, destination ?? pino.destination({ fd: 2, sync: true }));
  const pretty = PinoPretty({
    destination: destination ?? 2,
    sync: true,
    ignore: "pid,hostname,part",
    messageFormat: "[{part}] {msg}",
    translateTime: "SYS:HH:MM:ss.l",
    singleLine: true,
  });
  return pino(options, pretty);
}

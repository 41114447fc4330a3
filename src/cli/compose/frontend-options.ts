import type { FrontendOptions } from "../../frontend/options.ts";
import type { Config } from "../config/config.ts";

/** The configuration as the frontend takes it. */
export function configuredFrontend(config: Config, expected: FrontendOptions["expected"]): FrontendOptions {
  return {
    http: {
      host: config.get("http.host"),
      port: config.get("http.port"),
      maxBodyBytes: config.get("http.maxBodyBytes"),
      maxHeaderBytes: config.get("http.maxHeaderBytes"),
      maxNesting: config.get("http.maxNesting"),
      maxMessages: config.get("http.maxMessages"),
      maxStreams: config.get("http.maxStreams"),
      headersTimeoutMs: config.get("http.headersTimeoutMs"),
      bodyTimeoutMs: config.get("http.bodyTimeoutMs"),
      keepAliveTimeoutMs: config.get("http.keepAliveTimeoutMs"),
      slowReaderBufferBytes: config.get("http.slowReaderBufferBytes"),
      slowReaderTimeoutMs: config.get("http.slowReaderTimeoutMs"),
    },
    timeouts: {
      acceptMs: config.get("timeouts.acceptMs"),
      firstTokenMs: config.get("timeouts.firstTokenMs"),
      interTokenMs: config.get("timeouts.interTokenMs"),
      totalMs: config.get("timeouts.totalMs"),
    },
    migration: {
      limit: config.get("migration.limit"),
      maxTokens: config.get("migration.maxTokens"),
    },
    admin: { host: config.get("admin.host"), port: config.get("admin.port") },
    expected,
  };
}

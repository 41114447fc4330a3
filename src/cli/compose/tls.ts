import { readFileSync } from "node:fs";
import type { TlsOptions } from "../../runtime/security/tls-options.ts";
import { type Config, ConfigError } from "../config/config.ts";

/** The texts of the configured PEM files; undefined when none is configured. */
export function configuredTls(config: Config): TlsOptions | undefined {
  const cert = pem(config, "tls.cert");
  const key = pem(config, "tls.key");
  const ca = pem(config, "tls.ca");
  const serverName = config.get("tls.serverName");
  const requireClientCertificate = config.get("tls.requireClientCertificate");
  if (cert === undefined && key === undefined && ca === undefined && !requireClientCertificate) return undefined;
  return {
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
    ...(ca === undefined ? {} : { ca }),
    ...(serverName === "" ? {} : { serverName }),
    requireClientCertificate,
  };
}

function pem(config: Config, name: "tls.cert" | "tls.key" | "tls.ca"): string | undefined {
  const path = config.get(name);
  if (path === "") return undefined;
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    throw new ConfigError(`${name} = ${path}: cannot be read (${(cause as NodeJS.ErrnoException).code}).`, { cause });
  }
}

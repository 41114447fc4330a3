import { ConfigError } from "../config/config.ts";

/** A failed `listen` as a mistake in the configuration, where it is one. */
export function explainListen(error: unknown, key: string): unknown {
  const { code, port, address } = error as { code?: string; port?: number; address?: string };
  if (code === "EADDRINUSE") {
    return new ConfigError(
      `${key}: port ${port} on ${address} is in use by another program; choose another one, or 0 for any free one.`,
    );
  }
  if (code === "EACCES") {
    return new ConfigError(`${key}: port ${port} needs more rights than this user has; choose one above 1023.`);
  }
  if (code === "EADDRNOTAVAIL" || code === "ENOTFOUND") {
    return new ConfigError(`${key}: this machine has no address ${address ?? "of that name"}.`);
  }
  return error;
}

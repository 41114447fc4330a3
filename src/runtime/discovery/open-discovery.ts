import type { Logger } from "pino";
import { StatorError } from "../../protocol/errors.ts";
import type { Discovery } from "./discovery.ts";
import { EtcdDiscovery } from "./etcd/etcd.ts";
import type { EtcdClientOptions } from "./etcd/etcd-client.ts";
import { FileDiscovery } from "./file.ts";

export interface OpenDiscoveryOptions {
  readonly logger?: Logger;
  /** For etcd: user, password and TLS. */
  readonly etcd?: Omit<EtcdClientOptions, "endpoints">;
  /** For etcd: seconds after which a process that is gone is gone from the store. Default 10. */
  readonly ttlSeconds?: number;
}

/**
 * `file:DIR`, `etcd://HOST:PORT[,HOST:PORT...]` or, over TLS, `etcds://...`. Nothing is connected yet. Throws
 * `invalid_value` for anything else.
 */
export function openDiscovery(address: string, options: OpenDiscoveryOptions = {}): Discovery {
  const { logger, etcd, ttlSeconds } = options;
  const withLogger = logger === undefined ? {} : { logger };
  if (address.startsWith("file:")) {
    const folder = address.slice("file:".length);
    if (folder === "") throw invalid(address, "the folder is missing: file:/run/stator");
    return new FileDiscovery({ folder, ...withLogger });
  }
  return new EtcdDiscovery({
    client: { ...etcd, endpoints: etcdEndpoints(address) },
    ...(ttlSeconds === undefined ? {} : { ttlSeconds }),
    ...withLogger,
  });
}

/** The HTTP addresses of an `etcd://` address. */
export function etcdEndpoints(address: string): readonly string[] {
  const [, scheme, hosts] = /^(etcds?):\/\/(.+)$/s.exec(address) ?? [];
  if (scheme === undefined) throw invalid(address, "it is neither file:DIR nor etcd://HOST:PORT");
  return hosts!.split(",").map((host) => {
    if (host.includes("@")) throw invalid("etcd://...", "user and password do not belong into it");
    const text = `${scheme === "etcds" ? "https" : "http"}://${host}`;
    const url = URL.canParse(text) ? new URL(text) : undefined;
    if (url === undefined || url.pathname !== "/" || url.search !== "" || url.hash !== "" || host.endsWith("/")) {
      throw invalid(address, `${JSON.stringify(host)} is not HOST:PORT`);
    }
    return `${url.protocol}//${url.hostname}:${url.port || "2379"}`;
  });
}

function invalid(address: string, problem: string): StatorError {
  return new StatorError("invalid_value", `discovery ${JSON.stringify(address)} cannot be used: ${problem}.`, {
    param: "discovery",
  });
}

import type { LinkCut } from "../../runtime/request-plane/connection/link-cut.ts";
import { NatsRequestPlaneClient } from "../../runtime/request-plane/nats/client.ts";
import type { NatsOptions } from "../../runtime/request-plane/nats/nats-hub.ts";
import { NatsRequestPlaneServer } from "../../runtime/request-plane/nats/server.ts";
import type { RequestPlaneClient, RequestPlaneServer } from "../../runtime/request-plane/plane.ts";
import { TcpRequestPlaneClient } from "../../runtime/request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../../runtime/request-plane/tcp/server.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { configuredTls } from "./tls.ts";

/** How this process calls workers in others. */
export function configuredPlaneClient(config: Config, logger: Logger): RequestPlaneClient {
  const nats = natsOptions(config);
  if (nats !== undefined) return new NatsRequestPlaneClient({ ...secretOf(config), nats, logger });
  const tls = configuredTls(config);
  return new TcpRequestPlaneClient({ ...secretOf(config), ...(tls === undefined ? {} : { tls }) });
}

/** How a worker is called. `cut`: can cut it off. */
export function configuredPlaneServer(config: Config, logger: Logger, cut?: LinkCut): RequestPlaneServer {
  const nats = natsOptions(config);
  const common = { ...secretOf(config), ...(cut && { wrapLink: cut.wrap }), logger };
  if (nats !== undefined) return new NatsRequestPlaneServer({ ...common, nats });
  const tls = configuredTls(config);
  const host = config.get("worker.host");
  const advertiseHost = config.get("worker.advertiseHost");
  if (!isLoopback(host) && config.get("requestPlane.secret") === "" && !config.get("tls.requireClientCertificate")) {
    logger.warn(
      { host },
      "anybody who reaches the request plane may call this worker: set requestPlane.secret, or tls.requireClientCertificate",
    );
  }
  return new TcpRequestPlaneServer({
    ...common,
    host,
    port: config.get("worker.port"),
    ...(advertiseHost === "" ? {} : { advertiseHost }),
    ...(tls === undefined ? {} : { tls }),
  });
}

export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || host.startsWith("127.");
}

function secretOf(config: Config): { readonly sharedSecret?: string } {
  const sharedSecret = config.get("requestPlane.secret");
  return sharedSecret === "" ? {} : { sharedSecret };
}

function natsOptions(config: Config): NatsOptions | undefined {
  const kind = config.get("requestPlane.kind");
  if (kind === "tcp") return undefined;
  const [user, password, token] = [
    config.get("requestPlane.natsUser"),
    config.get("requestPlane.natsPassword"),
    config.get("requestPlane.natsToken"),
  ];
  if (user === "" && password !== "") {
    throw new ConfigError("requestPlane.natsUser is missing: requestPlane.natsPassword is set.");
  }
  const tls = configuredTls(config);
  return {
    servers: kind.split(","),
    ...(user === "" ? {} : { user, password }),
    ...(token === "" ? {} : { token }),
    ...(tls === undefined ? {} : { tls }),
  };
}

import { type OpenDiscoveryOptions, openDiscovery } from "../discovery/open-discovery.ts";
import { TcpRequestPlaneClient } from "../request-plane/tcp/client.ts";
import { TcpRequestPlaneServer, type TcpServerOptions } from "../request-plane/tcp/server.ts";
import { Runtime, type RuntimeOptions } from "./runtime.ts";

export interface OpenRuntimeOptions
  extends OpenDiscoveryOptions,
    Pick<TcpServerOptions, "host" | "port" | "advertiseHost" | "tls" | "sharedSecret">,
    Pick<RuntimeOptions, "instanceId" | "drainTimeoutMs"> {
  /** `file:DIR` or `etcd://HOST:PORT`. */
  readonly discovery: string;
}

/** A runtime over the tcp request plane. Nothing is connected or bound before it is used. */
export function openRuntime(options: OpenRuntimeOptions): Runtime {
  const { discovery, host, port, advertiseHost, tls, sharedSecret, logger, instanceId, drainTimeoutMs } = options;
  const both = defined({ tls, sharedSecret });
  return new Runtime({
    discovery: openDiscovery(discovery, options),
    client: new TcpRequestPlaneClient(both),
    server: new TcpRequestPlaneServer(defined({ ...both, host, port, advertiseHost, logger })),
    ...defined({ instanceId, drainTimeoutMs, logger }),
  });
}

type Defined<T> = { [K in keyof T]: Exclude<T[K], undefined> };

/** Without the members that are undefined. */
function defined<T extends object>(value: T): Partial<Defined<T>> {
  return Object.fromEntries(Object.entries(value).filter(([, it]) => it !== undefined)) as Partial<Defined<T>>;
}

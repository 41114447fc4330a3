import { isIP, isIPv6 } from "node:net";
import { type NetworkInterfaceInfo, networkInterfaces } from "node:os";

/** A host name or an address without brackets, and a port. */
export interface TcpTarget {
  readonly host: string;
  readonly port: number;
}

/** `tcp://host:port`, IPv6 hosts in brackets: the target, or what is wrong with it. */
export function parseTcpAddress(address: string): TcpTarget | string {
  const match = /^tcp:\/\/(?:\[([^\]]*)\]|([^:/[\]]+)):(\d{1,5})$/.exec(address);
  if (!match && address.startsWith("nats://")) return "it serves over NATS and this process calls over TCP";
  if (!match) return "it is not of the form tcp://host:port";
  const [, literal, name, digits] = match;
  if (literal?.includes("%")) return zoneProblem;
  if (literal !== undefined && !isIPv6(literal)) return "what stands in brackets is not an IPv6 address";
  const port = Number(digits);
  if (port < 1 || port > 65535) return `there is no port ${digits}`;
  return { host: literal ?? name!, port };
}

export function formatTcpAddress(host: string, port: number): string {
  return `tcp://${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

/** What is wrong with a host to listen on or to advertise, if anything. A host is given without brackets. */
export function hostProblem(host: string): string | undefined {
  if (host.includes("%")) return zoneProblem;
  if (isIP(host) !== 0) return undefined;
  return /^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$/.test(host)
    ? undefined
    : "it is neither a host name nor an address";
}

const zoneProblem = "an address with an interface zone (%) means nothing on another host";

export interface AdvertisedHost {
  readonly host: string;
  /** There is no address that other hosts reach. */
  readonly isLoopbackOnly: boolean;
}

/**
 * What clients should call when a server is bound to `bindHost` and nothing else was said: the host itself, or for a
 * wildcard the first address of this machine that others can reach, IPv4 first.
 */
export function advertisedHostOf(bindHost: string, interfaces = networkInterfaces()): AdvertisedHost {
  const isWildcard = bindHost === "0.0.0.0" || /^[0:]+$/.test(bindHost);
  if (!isWildcard) return { host: bindHost, isLoopbackOnly: false };
  const external = Object.values(interfaces)
    .flat()
    .filter((it): it is NetworkInterfaceInfo => it !== undefined && !it.internal);
  // Link-local IPv6 needs an interface zone.
  const found =
    external.find((it) => it.family === "IPv4") ??
    (bindHost.includes(":")
      ? external.find((it) => it.family === "IPv6" && !/^fe[89ab]/i.test(it.address))
      : undefined);
  if (found) return { host: found.address, isLoopbackOnly: false };
  return { host: bindHost.includes(":") ? "::1" : "127.0.0.1", isLoopbackOnly: true };
}

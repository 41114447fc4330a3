/*
 * `nats://<server id>`: a worker that listens under that id in the NATS system that both sides are configured with. It is
 * not the address of a NATS server, which is configuration: a worker keeps its address when NATS moves.
 */

const SERVER_ID = /^[A-Za-z0-9_-]{1,64}$/;
const SCHEME = "nats://";

export function isServerId(id: string): boolean {
  return SERVER_ID.test(id);
}

export function formatNatsAddress(serverId: string): string {
  return SCHEME + serverId;
}

/** The server id, or undefined when it is something else. */
export function parseNatsAddress(address: string): string | undefined {
  const id = address.startsWith(SCHEME) ? address.slice(SCHEME.length) : "";
  return isServerId(id) ? id : undefined;
}

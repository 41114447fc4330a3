import { createSecureContext } from "node:tls";
import { clientCredentials, type TlsOptions } from "../../security/tls-options.ts";
import { FramedClient, type FramedClientOptions } from "../connection/framed-client.ts";
import { unreachable } from "../outgoing-stream.ts";
import { parseTcpAddress } from "./address.ts";
import { SocketLink, type SocketTls } from "./socket-link.ts";

export interface TcpClientOptions extends FramedClientOptions {
  /** Speak TLS with every server. Incomplete options throw `invalid_value` at construction. */
  readonly tls?: TlsOptions;
}

/** Calls servers at `tcp://host:port`, over TCP or TLS. */
export class TcpRequestPlaneClient extends FramedClient {
  constructor(options: TcpClientOptions = {}) {
    const tls = options.tls && tlsOf(options.tls);
    super(options, (address) => {
      const target = parseTcpAddress(address);
      if (typeof target === "string") throw unreachable(address, target);
      return SocketLink.to(target, tls);
    });
  }
}

function tlsOf(options: TlsOptions): SocketTls {
  return { context: createSecureContext(clientCredentials(options)), serverName: options.serverName };
}

import type { Logger } from "pino";
import { FramedClient, type FramedClientOptions } from "../connection/framed-client.ts";
import { unreachable } from "../outgoing-stream.ts";
import { parseNatsAddress } from "./address.ts";
import { NatsHub, type NatsOptions } from "./nats-hub.ts";
import { NatsLink } from "./nats-link.ts";

export interface NatsClientOptions extends FramedClientOptions {
  readonly nats: NatsOptions;
  readonly logger?: Logger;
}

/** Calls servers at `nats://<server id>`, over one connection to NATS that the first call opens. */
export class NatsRequestPlaneClient extends FramedClient {
  readonly #hub: NatsHub;

  constructor(options: NatsClientOptions) {
    const hub = new NatsHub(options.nats, options.logger);
    super(options, (address) => {
      const serverId = parseNatsAddress(address);
      if (serverId === undefined) {
        const isTcp = address.startsWith("tcp://");
        throw unreachable(
          address,
          isTcp ? "it serves over TCP and this process calls over NATS" : "it is not of the form nats://<server id>",
        );
      }
      return NatsLink.to(hub, serverId);
    });
    this.#hub = hub;
  }

  override async close(): Promise<void> {
    await super.close();
    await this.#hub.close();
  }
}

import { StatorError } from "../../../protocol/errors.ts";
import { uniqueId } from "../../lifecycle/unique-id.ts";
import { type FramedServerOptions, ServerConnections } from "../connection/server-connections.ts";
import type { CallHandler, RequestPlaneServer } from "../plane.ts";
import { formatNatsAddress, isServerId } from "./address.ts";
import { NatsHub, type NatsOptions } from "./nats-hub.ts";
import { NatsLink } from "./nats-link.ts";

export interface NatsServerOptions extends FramedServerOptions {
  readonly nats: NatsOptions;
  /** Letters, digits, `-` and `_`; nobody else may have it. Default: a random one. */
  readonly serverId?: string;
}

/** Serves calls under an id in a NATS system; comes back by itself when NATS does. */
export class NatsRequestPlaneServer implements RequestPlaneServer {
  readonly address: string;
  readonly #serverId: string;
  readonly #connections: ServerConnections;
  readonly #hub: NatsHub;
  #listening: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  constructor(options: NatsServerOptions) {
    this.#serverId = options.serverId ?? uniqueId("rpc-");
    if (!isServerId(this.#serverId)) {
      throw new StatorError("invalid_value", "serverId must have 1 to 64 letters, digits, - or _.", {
        param: "serverId",
      });
    }
    this.address = formatNatsAddress(this.#serverId);
    this.#hub = new NatsHub(options.nats, options.logger);
    this.#connections = new ServerConnections(options);
  }

  get activeCalls(): number {
    return this.#connections.activeCalls;
  }

  listen(): Promise<void> {
    this.#listening ??= this.#listen();
    return this.#listening;
  }

  async #listen(): Promise<void> {
    await this.#hub.connect();
    this.#hub.subscribe(this.#hub.subjectOf(this.#serverId), (error, message) => {
      const { reply } = message;
      if (error || !this.#hub.isPrivate(reply) || !NatsLink.isSyn(message.data)) return;
      if (this.#connections.isCrowded()) NatsLink.refuse(this.#hub, reply);
      else this.#connections.add(NatsLink.accepted(this.#hub, reply));
    });
    await this.#hub.flush();
  }

  handle(endpoint: string, handler: CallHandler): void {
    this.#connections.handle(endpoint, handler);
  }

  stopAccepting(): void {
    this.#connections.stopAccepting();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#connections.close();
    await this.#hub.close();
    this.#connections.wheel.close();
  }
}

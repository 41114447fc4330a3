import type {
  ConnectionOptions,
  Msg,
  MsgCallback,
  NatsConnection,
  Status,
  Subscription,
} from "@nats-io/transport-node";
import type { Logger } from "pino";
import { StatorError } from "../../../protocol/errors.ts";
import { uniqueId } from "../../lifecycle/unique-id.ts";
import { clientCredentials, type TlsOptions } from "../../security/tls-options.ts";

export interface NatsOptions {
  /** `nats://host:port`, one or several of a cluster. */
  readonly servers: string | readonly string[];
  readonly user?: string;
  readonly password?: string;
  readonly token?: string;
  readonly tls?: Pick<TlsOptions, "ca" | "cert" | "key">;
  /** First part of every subject, so that several systems can share a NATS cluster. Default `stator`. */
  readonly subjectPrefix?: string;
}

/** Something that ends with the connection to NATS, because messages may have been lost with it. */
export interface HubUser {
  natsLost(why: string): void;
}

const CONNECT_TIMEOUT_MS = 3000;
const RECONNECT_WAIT_MS = 250;
/** A NATS server that answers no ping for two intervals is given up. */
const PING_INTERVAL_MS = 5000;
/** How long NATS may take to confirm what was sent. */
const LINGER_MS = 1000;

/**
 * This process's connection to NATS, begun when it is first needed. When it breaks, all that runs over it ends at once, it
 * is opened again in the background for as long as it takes, and meanwhile `connect` fails at once.
 */
export class NatsHub {
  readonly prefix: string;
  readonly #options: NatsOptions;
  readonly #logger: Logger | undefined;
  readonly #users = new Set<HubUser>();
  #connecting: Promise<NatsConnection> | undefined;
  #connection: NatsConnection | undefined;
  #isUp = false;
  #closed = false;

  constructor(options: NatsOptions, logger: Logger | undefined) {
    this.prefix = options.subjectPrefix ?? "stator";
    if (!/^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/.test(this.prefix)) {
      throw new StatorError("invalid_value", "nats.subjectPrefix must be words with dots between them.", {
        param: "nats.subjectPrefix",
      });
    }
    if (options.tls) clientCredentials(options.tls, "nats.tls");
    this.#options = options;
    this.#logger = logger;
  }

  /** Largest message that NATS takes now. */
  get maxPayload(): number {
    return this.#connection?.info?.max_payload ?? 0;
  }

  /** Where a server with this id is called. */
  subjectOf(serverId: string): string {
    return `${this.prefix}.rpc.${serverId}`;
  }

  /** A subject that nobody else has. */
  privateSubject(): string {
    return this.#privatePrefix + uniqueId("", 24);
  }

  /** It can be one that `privateSubject` made, here or elsewhere: nobody makes us write to the subjects of others. */
  isPrivate(subject: string | undefined): subject is string {
    return (
      subject?.startsWith(this.#privatePrefix) === true &&
      /^[a-z0-9-]+$/.test(subject.slice(this.#privatePrefix.length))
    );
  }

  get #privatePrefix(): string {
    return `${this.prefix}.link.`;
  }

  add(user: HubUser): void {
    this.#users.add(user);
  }

  remove(user: HubUser): void {
    this.#users.delete(user);
  }

  /** Resolves when messages can be sent; rejects with `worker_unreachable` or `peer_authentication_failed`. */
  async connect(): Promise<void> {
    if (this.#closed) throw unreachableNats("the client is closed");
    if (this.#connection) {
      if (!this.#isUp) throw unreachableNats("the connection was lost and is not back yet");
      return;
    }
    this.#connecting ??= this.#open();
    await this.#connecting;
  }

  /** Without effect while NATS is away. */
  publish(subject: string, payload: Uint8Array, reply?: string): void {
    if (!this.#isUp || !this.#connection) return;
    this.#connection.publish(subject, payload, reply === undefined ? undefined : { reply });
  }

  /** To be called after `connect`. Survives a reconnection. */
  subscribe(subject: string, callback: MsgCallback<Msg>): Subscription {
    if (!this.#connection) throw unreachableNats("there is no connection");
    return this.#connection.subscribe(subject, { callback });
  }

  /** Resolves when NATS has taken all that was sent to it, or after a second. */
  async flush(): Promise<void> {
    const linger = new Promise<void>((resolve) => setTimeout(resolve, LINGER_MS).unref());
    await Promise.race([this.#connection?.flush().catch(() => {}), linger]);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#lose("the connection to NATS was closed");
    await this.#connecting?.catch(() => {});
    await this.flush();
    await this.#connection?.close();
    this.#connection = undefined;
  }

  async #open(): Promise<NatsConnection> {
    try {
      const { connect } = await loadClient();
      const connection = await connect(connectionOptions(this.#options));
      this.#connection = connection;
      this.#isUp = true;
      void this.#watch(connection);
      return connection;
    } catch (thrown) {
      throw thrown instanceof StatorError ? thrown : connectFailure(thrown, String(this.#options.servers));
    } finally {
      this.#connecting = undefined;
    }
  }

  async #watch(connection: NatsConnection): Promise<void> {
    for await (const status of connection.status()) this.#onStatus(status);
    this.#lose("the connection to NATS ended"); // only by `close`: the client library never gives up
  }

  #onStatus(status: Status): void {
    switch (status.type) {
      case "disconnect":
      case "staleConnection":
        this.#logger?.warn("the connection to NATS was lost");
        this.#lose("the connection to NATS was lost");
        break;
      case "reconnect":
        this.#logger?.info("the connection to NATS is back");
        this.#isUp = true;
        break;
      case "error":
        this.#logger?.warn({ err: status.error }, "NATS reports an error");
        break;
      default:
        break;
    }
  }

  #lose(why: string): void {
    this.#isUp = false;
    for (const user of [...this.#users]) user.natsLost(why);
  }
}

async function loadClient(): Promise<typeof import("@nats-io/transport-node")> {
  try {
    return await import("@nats-io/transport-node");
  } catch (cause) {
    const missing = (cause as NodeJS.ErrnoException).code === "ERR_MODULE_NOT_FOUND";
    const what = missing ? "is not installed: npm install @nats-io/transport-node" : "cannot be loaded";
    throw new StatorError("not_ready", `The request plane over NATS needs @nats-io/transport-node, which ${what}.`, {
      cause,
    });
  }
}

function connectionOptions(options: NatsOptions): ConnectionOptions {
  const { servers, user, password, token, tls } = options;
  return {
    servers: typeof servers === "string" ? servers : [...servers],
    name: "stator",
    timeout: CONNECT_TIMEOUT_MS,
    pingInterval: PING_INTERVAL_MS,
    maxPingOut: 2,
    maxReconnectAttempts: -1,
    reconnectTimeWait: RECONNECT_WAIT_MS,
    reconnectJitter: RECONNECT_WAIT_MS,
    ignoreAuthErrorAbort: true, // what is wrong now may be put right while we wait
    ...(user === undefined ? {} : { user }),
    ...(password === undefined ? {} : { pass: password }),
    ...(token === undefined ? {} : { token }),
    ...(tls === undefined ? {} : { tls: { ...tls } }),
  };
}

/** `servers`: without passwords, which have options of their own. */
function connectFailure(thrown: unknown, servers: string): StatorError {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  if (error.name === "AuthorizationError" || error.name === "UserAuthenticationExpiredError") {
    return new StatorError(
      "peer_authentication_failed",
      `NATS at ${servers} refuses the connection: ${error.message}.`,
      {
        cause: thrown,
      },
    );
  }
  return unreachableNats(`${servers}: ${error.message}`, thrown);
}

function unreachableNats(why: string, cause?: unknown): StatorError {
  return new StatorError("worker_unreachable", `NATS cannot be reached: ${why}.`, cause === undefined ? {} : { cause });
}

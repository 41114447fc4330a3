import type { NatsConnection, NodeConnectionOptions } from "@nats-io/transport-node";
import { StatorError } from "../../../protocol/errors.ts";
import type { EventInlet, EventOrigin, EventOutlet, EventTransport } from "../plane.ts";

const SCHEME = "nats:";
const addressPattern = /^nats:(?:[\w%-]+\.)+[\w%-]+$/;
const testedVersion = "3.4.0";

export type NatsTransportOptions = Pick<NodeConnectionOptions, "servers" | "user" | "pass" | "token" | "tls">;

const CONNECT_TIMEOUT_MS = 5000;
const RECONNECT_WAIT_MS = 500;
/** A server that answers no ping is left after about twice this time. */
const PING_INTERVAL_MS = 5000;
/** Sent after this much without an answer from the server, the client would buffer without a bound. */
const MAX_UNFLUSHED_BYTES = 4 * 1024 * 1024;

/** Frames over a NATS server (core, without JetStream), one subject for each publisher. Addresses are `nats:subject`. */
export class NatsEventTransport implements EventTransport {
  readonly #connection: NatsConnection;
  #unflushedBytes = 0;
  #flushed: Promise<void> | undefined;
  /** Present while there is no connection; resolves when there is one again, or will be none. */
  #outage: { readonly over: Promise<void>; readonly end: () => void } | undefined;

  /** Rejects with `not_ready` when the package is missing or no server can be reached. Later losses are ridden out. */
  static async open(options: NatsTransportOptions): Promise<NatsEventTransport> {
    const { connect } = await importNats();
    try {
      const connection = await connect({
        ...options,
        name: "stator events",
        timeout: CONNECT_TIMEOUT_MS,
        reconnectTimeWait: RECONNECT_WAIT_MS,
        maxReconnectAttempts: -1,
        pingInterval: PING_INTERVAL_MS,
      });
      return new NatsEventTransport(connection);
    } catch (cause) {
      throw new StatorError("not_ready", `The event plane cannot reach a NATS server: ${String(cause)}`, { cause });
    }
  }

  private constructor(connection: NatsConnection) {
    this.#connection = connection;
    void this.#watchConnection();
  }

  async bind(origin: EventOrigin): Promise<EventOutlet> {
    const subject = subjectOf(origin);
    let isOpen = true;
    return {
      address: SCHEME + subject,
      maxFrameBytes: this.#connection.info?.max_payload ?? 1024 * 1024,
      send: (frame) => (isOpen ? this.#send(subject, frame) : undefined),
      close: async () => {
        isOpen = false;
      },
    };
  }

  connect(address: string, onFrame: (frame: Uint8Array) => void): EventInlet {
    if (!addressPattern.test(address)) {
      throw new StatorError("worker_unreachable", `${address} is not an address of the nats event plane.`);
    }
    try {
      const subscription = this.#connection.subscribe(address.slice(SCHEME.length), {
        // A copy: the client's bytes are views of what it read from the socket.
        callback: (err, message) => {
          if (!err) onFrame(new Uint8Array(message.data));
        },
      });
      return { close: () => subscription.unsubscribe() };
    } catch (cause) {
      throw new StatorError("worker_unreachable", `The event plane cannot subscribe to ${address}.`, { cause });
    }
  }

  async close(): Promise<void> {
    await this.#connection.close();
  }

  /** What cannot be sent is lost here; the subscribers see a gap. */
  #send(subject: string, frame: Uint8Array): Promise<void> | undefined {
    if (this.#outage) return this.#outage.over;
    try {
      this.#connection.publish(subject, frame);
    } catch {
      return undefined;
    }
    this.#unflushedBytes += frame.length;
    if (this.#unflushedBytes < MAX_UNFLUSHED_BYTES) return undefined;
    this.#flushed ??= this.#connection
      .flush()
      .catch(() => this.#outage?.over)
      .then(() => {
        this.#flushed = undefined;
        this.#unflushedBytes = 0;
      });
    return this.#flushed;
  }

  async #watchConnection(): Promise<void> {
    for await (const { type } of this.#connection.status()) {
      if (type === "disconnect") this.#outage ??= makeOutage();
      else if (type === "reconnect") this.#endOutage();
    }
    this.#endOutage();
  }

  #endOutage(): void {
    this.#outage?.end();
    this.#outage = undefined;
  }
}

/** `stator.events.<namespace>.<component>.<topic>.<workerId>`: an epoch is told by the frames, not by the subject. */
export function subjectOf({ namespace, component, topic, workerId }: EventOrigin): string {
  return ["stator", "events", ...[namespace, component, topic, workerId].map(subjectToken)].join(".");
}

/** Letters, digits, `_` and `-` as they are, other bytes as %XX: a dot or a wildcard would change the subject's shape. */
function subjectToken(text: string): string {
  return encodeURIComponent(text).replace(/[.!~*'()]/g, (mark) => `%${mark.charCodeAt(0).toString(16).toUpperCase()}`);
}

function makeOutage(): { over: Promise<void>; end: () => void } {
  let end!: () => void;
  const over = new Promise<void>((resolve) => {
    end = resolve;
  });
  return { over, end };
}

async function importNats(): Promise<typeof import("@nats-io/transport-node")> {
  try {
    return await import("@nats-io/transport-node");
  } catch (cause) {
    throw new StatorError(
      "not_ready",
      `The nats event plane needs the package @nats-io/transport-node. Install it: npm install @nats-io/transport-node@${testedVersion}`,
      { cause },
    );
  }
}

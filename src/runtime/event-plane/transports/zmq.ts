import { isIPv6 } from "node:net";
import type { Context, Publisher, Subscriber } from "zeromq";
import { StatorError } from "../../../protocol/errors.ts";
import { advertisedHostOf, formatTcpAddress, parseTcpAddress } from "../../request-plane/tcp/address.ts";
import type { EventInlet, EventOutlet, EventTransport } from "../plane.ts";

/** The package, loaded when the transport is opened: it is optional. */
type ZeroMq = typeof import("zeromq");

const testedVersion = "6.8.0";

export interface ZmqTransportOptions {
  /** Where publishers bind. Default 127.0.0.1: the plane has neither authentication nor encryption. */
  readonly host?: string;
  /**
   * The host that addresses show. Default: the one to bind, or for a wildcard an address of this machine. A name stands
   * for its IPv4 address.
   */
  readonly advertisedHost?: string;
  /** Frames that wait for one slow peer, on each side; more are lost to that peer, which sees a gap. Default 1000. */
  readonly highWaterMark?: number;
  /** Default 4 MiB. A subscriber drops the connection of a peer that sends more. */
  readonly maxFrameBytes?: number;
}

/** The library's own default is 1023, which is two topics of 500 workers. It reserves a few bytes for each. */
const MAX_SOCKETS = 16_384;
/** A peer that is silently gone is noticed within this time; it then costs no memory any more. */
const peerWatch = { heartbeatInterval: 2000, heartbeatTimeout: 6000 };
const reconnect = { reconnectInterval: 50, reconnectMaxInterval: 2000 };

/** Publishers bind a free port each, subscribers connect to them: no broker. Addresses are `tcp://host:port`. */
export class ZmqEventTransport implements EventTransport {
  readonly #zmq: ZeroMq;
  readonly #context: Context;
  readonly #host: string;
  readonly #advertisedHost: string;
  readonly #highWaterMark: number;
  readonly #maxFrameBytes: number;
  readonly #sockets = new Set<Publisher | Subscriber>();

  /** Rejects with `not_ready` when the package is missing. */
  static async open(options: ZmqTransportOptions = {}): Promise<ZmqEventTransport> {
    return new ZmqEventTransport(await importZeroMq(), options);
  }

  private constructor(zmq: ZeroMq, options: ZmqTransportOptions) {
    this.#zmq = zmq;
    this.#context = new zmq.Context({ maxSockets: MAX_SOCKETS });
    this.#host = options.host ?? "127.0.0.1";
    this.#advertisedHost = options.advertisedHost ?? advertisedHostOf(this.#host).host;
    this.#highWaterMark = options.highWaterMark ?? 1000;
    this.#maxFrameBytes = options.maxFrameBytes ?? 4 * 1024 * 1024;
  }

  async bind(): Promise<EventOutlet> {
    const socket = new this.#zmq.Publisher({
      context: this.#context,
      sendHighWaterMark: this.#highWaterMark,
      linger: 0,
      ipv6: isIPv6(this.#host),
      ...peerWatch,
    });
    this.#sockets.add(socket);
    try {
      await socket.bind(`tcp://${isIPv6(this.#host) ? `[${this.#host}]` : this.#host}:*`);
    } catch (cause) {
      this.#close(socket);
      throw new StatorError("not_ready", `The event plane cannot bind a port on ${this.#host}.`, { cause });
    }
    const port = Number(/:(\d+)$/.exec(socket.lastEndpoint ?? "")?.[1]);
    return {
      address: formatTcpAddress(this.#advertisedHost, port),
      maxFrameBytes: this.#maxFrameBytes,
      send: (frame) => send(socket, frame),
      close: async () => this.#close(socket),
    };
  }

  connect(address: string, onFrame: (frame: Uint8Array) => void): EventInlet {
    const target = parseTcpAddress(address);
    if (typeof target === "string") {
      throw new StatorError("worker_unreachable", `${address} is no address of the zmq event plane: ${target}.`);
    }
    const socket = new this.#zmq.Subscriber({
      context: this.#context,
      receiveHighWaterMark: this.#highWaterMark,
      maxMessageSize: this.#maxFrameBytes,
      linger: 0,
      ipv6: isIPv6(target.host),
      ...peerWatch,
      ...reconnect,
    });
    this.#sockets.add(socket);
    try {
      socket.subscribe();
      socket.connect(address);
    } catch (cause) {
      this.#close(socket);
      throw new StatorError("worker_unreachable", `The event plane cannot connect to ${address}.`, { cause });
    }
    void receive(socket, onFrame);
    return { close: () => this.#close(socket) };
  }

  async close(): Promise<void> {
    for (const socket of [...this.#sockets]) this.#close(socket);
  }

  #close(socket: Publisher | Subscriber): void {
    if (!this.#sockets.delete(socket)) return;
    socket.close();
  }
}

/**
 * A publisher's socket is always writable: it drops what a slow peer has no room for. It is a promise because the library
 * wants one send at a time.
 */
async function send(socket: Publisher, frame: Uint8Array): Promise<void> {
  if (socket.closed) return;
  try {
    await socket.send(frame);
  } catch {
    // Closed meanwhile: there is nobody left to send to.
  }
}

/** Ends when the socket is closed, which rejects the receive. */
async function receive(socket: Subscriber, onFrame: (frame: Uint8Array) => void): Promise<void> {
  try {
    for (;;) {
      const [frame] = await socket.receive();
      if (socket.closed) return;
      if (frame) onFrame(frame);
    }
  } catch {
    // Nothing else rejects it: lost connections are the library's own affair.
  }
}

async function importZeroMq(): Promise<ZeroMq> {
  try {
    return await import("zeromq");
  } catch (cause) {
    const missing = (cause as NodeJS.ErrnoException).code === "ERR_MODULE_NOT_FOUND";
    const why = missing
      ? "is not installed"
      : `does not start: ${cause instanceof Error ? cause.message : String(cause)}`;
    throw new StatorError(
      "not_ready",
      `The zmq event plane needs the package zeromq, which ${why}. Install it: npm install zeromq@${testedVersion}`,
      { cause },
    );
  }
}

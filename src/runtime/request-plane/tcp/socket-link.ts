import { connect, isIP, type OnReadOpts, type Socket } from "node:net";
import { type SecureContext, type TLSSocket, connect as tlsConnect } from "node:tls";
import type { StatorError } from "../../../protocol/errors.ts";
import type { ByteLink, ByteLinkEvents } from "../connection/byte-link.ts";
import { unproven } from "../connection/handshake.ts";
import type { TcpTarget } from "./address.ts";

const READ_BUFFER_BYTES = 64 * 1024;
/** How long a closing socket may take to hand out its last bytes. */
const LINGER_MS = 1000;

export interface SocketTls {
  readonly context: SecureContext;
  /** The name that the server's certificate must have, when it is not the host. */
  readonly serverName: string | undefined;
}

/** Bytes over a TCP or TLS socket. */
export class SocketLink implements ByteLink {
  #socket!: Socket;
  #events: ByteLinkEvents | undefined;
  #isOpen = false;
  readonly #begin: () => void;

  private constructor(begin: (link: SocketLink) => void) {
    this.#begin = () => begin(this);
  }

  /** A connection to `target`, begun by `start`. */
  static to(target: TcpTarget, tls: SocketTls | undefined): SocketLink {
    return new SocketLink((link) => {
      // One buffer for all reads: every frame is used up before the callback returns. Not a Buffer, whose `slice` would
      // give a view to a sink that wants a copy.
      const onread = {
        buffer: new Uint8Array(READ_BUFFER_BYTES),
        callback: (bytes: number, buffer: Uint8Array): boolean => {
          link.#events?.onBytes(buffer.subarray(0, bytes));
          return true;
        },
      };
      const socket = tls ? connectSecurely(target, tls, onread) : connect({ ...target, onread });
      link.#adopt(socket);
      socket.once(tls ? "secureConnect" : "connect", () => link.#open());
    });
  }

  /** The server's end of a connection that is there. */
  static accepted(socket: Socket): SocketLink {
    return new SocketLink((link) => {
      link.#adopt(socket);
      socket.on("data", (chunk) => link.#events?.onBytes(chunk));
      link.#open();
    });
  }

  get waitingBytes(): number {
    return this.#socket.writableLength;
  }

  start(events: ByteLinkEvents): void {
    this.#events = events;
    this.#begin();
  }

  write(parts: readonly Uint8Array[]): void {
    const socket = this.#socket;
    if (socket.destroyed || !this.#events) return;
    if (parts.length === 1) {
      socket.write(parts[0]!);
      return;
    }
    socket.cork();
    for (const part of parts) socket.write(part);
    socket.uncork();
  }

  end(): void {
    this.#events = undefined;
    const socket = this.#socket;
    if (socket.connecting) {
      socket.destroy();
      return;
    }
    socket.destroySoon();
    socket.resume(); // unread bytes would keep the peer from closing
    const linger = setTimeout(() => socket.destroy(), LINGER_MS).unref();
    socket.once("close", () => clearTimeout(linger));
  }

  destroy(): void {
    this.#events = undefined;
    this.#socket.destroy();
  }

  #adopt(socket: Socket): void {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on("error", (error) => this.#over(error.message, this.#isOpen ? undefined : certificateProblem(error)));
    socket.on("close", () => this.#over("it closed the connection"));
    socket.on("drain", () => this.#events?.onDrain());
  }

  #open(): void {
    this.#isOpen = true;
    this.#events?.onOpen();
  }

  #over(why: string, error?: StatorError): void {
    const events = this.#events;
    this.#events = undefined;
    events?.onClosed(why, error);
  }
}

function connectSecurely(target: TcpTarget, tls: SocketTls, onread: OnReadOpts): TLSSocket {
  const { host, port } = target;
  const name = tls.serverName ?? (isIP(host) === 0 ? host : undefined);
  const options = {
    host,
    port,
    secureContext: tls.context,
    onread, // known to Node, not to its types
    ...(name === undefined ? {} : { servername: name }),
  };
  return tlsConnect(options);
}

/** What OpenSSL and Node report when the two sides do not trust each other or only one of them speaks TLS. */
function certificateProblem(error: NodeJS.ErrnoException): StatorError | undefined {
  const code = error.code ?? "";
  if (code === "ERR_SSL_WRONG_VERSION_NUMBER" || code === "ERR_SSL_PACKET_LENGTH_TOO_LONG") {
    return unproven("the worker does not speak TLS");
  }
  return /CERT|SIGNATURE|ISSUER|ERR_SSL_/.test(code) ? unproven(`${error.message} (${code})`) : undefined;
}

import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { createServer as createTlsServer, type TLSSocket } from "node:tls";
import { StatorError } from "../../../protocol/errors.ts";
import { serverCredentials, type TlsOptions } from "../../security/tls-options.ts";
import { unproven } from "../connection/handshake.ts";
import { DEFAULT_HANDSHAKE_MS, type FramedServerOptions, ServerConnections } from "../connection/server-connections.ts";
import type { CallHandler, RequestPlaneServer } from "../plane.ts";
import { advertisedHostOf, formatTcpAddress, hostProblem } from "./address.ts";
import { SocketLink } from "./socket-link.ts";

export interface TcpServerOptions extends FramedServerOptions {
  /** What to bind. Default 127.0.0.1; `::` takes IPv6 and IPv4. Without `sharedSecret` or `tls` anybody may call. */
  readonly host?: string;
  /** Default 0: any free port. */
  readonly port?: number;
  /** The host that `address` shows. Default: the one to bind; for a wildcard this machine's first address. */
  readonly advertiseHost?: string;
  /** Speak TLS with every client. Incomplete options throw `invalid_value` at construction. */
  readonly tls?: TlsOptions;
}

/** Serves calls on a TCP port, over TCP or TLS. */
export class TcpRequestPlaneServer implements RequestPlaneServer {
  readonly #options: TcpServerOptions;
  readonly #connections: ServerConnections;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #address: string | undefined;
  #listening: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  constructor(options: TcpServerOptions = {}) {
    this.#options = options;
    for (const field of ["host", "advertiseHost"] as const) checkHost(field, options[field]);
    this.#connections = new ServerConnections(options);
    this.#server = options.tls ? this.#tlsServer(options.tls) : this.#plainServer();
  }

  get address(): string {
    if (this.#address === undefined) throw new Error("the server does not listen yet");
    return this.#address;
  }

  get activeCalls(): number {
    return this.#connections.activeCalls;
  }

  listen(): Promise<void> {
    this.#listening ??= this.#listen();
    return this.#listening;
  }

  async #listen(): Promise<void> {
    const { logger, advertiseHost } = this.#options;
    const host = this.#options.host ?? "127.0.0.1";
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen({ host, port: this.#options.port ?? 0 }, () => {
        this.#server.off("error", reject);
        // Errors of accept (out of file descriptors): the server goes on, clients see a refused connection.
        this.#server.on("error", (err) => logger?.warn({ err }, "the request plane cannot accept"));
        resolve();
      });
    });
    const { port } = this.#server.address() as AddressInfo;
    const advertised = advertisedHostOf(host);
    if (advertiseHost === undefined && advertised.isLoopbackOnly) {
      logger?.warn({ host }, "this machine has no address that others reach; the request plane advertises loopback");
    }
    this.#address = formatTcpAddress(advertiseHost ?? advertised.host, port);
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
    const closed = this.#server.listening
      ? new Promise<void>((resolve) => this.#server.close(() => resolve()))
      : Promise.resolve();
    this.#connections.close();
    const linger = setTimeout(() => {
      for (const socket of this.#sockets) socket.destroy();
    }, 1000);
    await closed;
    clearTimeout(linger);
    this.#connections.wheel.close();
  }

  #plainServer(): Server {
    return createServer({ noDelay: true }, (socket) => {
      if (this.#admits(socket)) this.#connections.add(SocketLink.accepted(socket));
    });
  }

  #tlsServer(options: TlsOptions): Server {
    const { requireClientCertificate = false } = options;
    const server = createTlsServer(
      {
        ...serverCredentials(options),
        requestCert: requireClientCertificate,
        rejectUnauthorized: false, // below: the client is told why
        handshakeTimeout: this.#options.handshakeTimeoutMs ?? DEFAULT_HANDSHAKE_MS,
        noDelay: true,
      },
      (socket) => {
        const refusal = requireClientCertificate ? certificateRefusal(socket) : undefined;
        if (refusal) this.#options.logger?.warn({ reason: refusal.message }, "the request plane refused a client");
        this.#connections.add(SocketLink.accepted(socket), refusal);
      },
    );
    server.on("connection", (socket: Socket) => this.#admits(socket));
    server.on("tlsClientError", (error: Error, socket: TLSSocket) => {
      this.#options.logger?.debug({ err: error }, "a TLS handshake failed");
      socket.destroy();
    });
    return server;
  }

  /** Keeps count of a raw socket, or closes it: strangers must not use up what this process has. */
  #admits(socket: Socket): boolean {
    if (this.#connections.isCrowded(this.#sockets.size)) {
      socket.destroy();
      return false;
    }
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
    return true;
  }
}

function certificateRefusal(socket: TLSSocket): StatorError | undefined {
  if (socket.authorized) return undefined;
  const hasOne = Object.keys(socket.getPeerCertificate()).length > 0;
  return unproven(
    hasOne
      ? `the worker does not accept the caller's certificate (${String(socket.authorizationError)})`
      : "the worker wants a certificate and the caller has none",
  );
}

function checkHost(field: string, host: string | undefined): void {
  const problem = host === undefined ? undefined : hostProblem(host);
  if (problem !== undefined) {
    throw new StatorError("invalid_value", `${field} ${JSON.stringify(host)} cannot be used: ${problem}.`, {
      param: field,
    });
  }
}

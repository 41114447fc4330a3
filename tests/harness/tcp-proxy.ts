import { connect, createServer, type Server, type Socket } from "node:net";

/** Between a client and a worker: passes everything on until it is told to misbehave. */
export class TcpProxy {
  readonly #server: Server;
  readonly #pairs = new Set<readonly [client: Socket, target: Socket]>();
  #stallAfterBytes: number | undefined;

  private constructor(server: Server) {
    this.#server = server;
  }

  /** Listens on `listen` and connects to `target`, the same port of two addresses. */
  static async start(listen: string, target: string, port: number): Promise<TcpProxy> {
    const server = createServer();
    const proxy = new TcpProxy(server);
    server.on("connection", (client) => proxy.#join(client, connect({ host: target, port, noDelay: true })));
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen({ host: listen, port }, resolve);
    });
    return proxy;
  }

  /** RST on both sides of every connection. */
  reset(): void {
    for (const [client, target] of this.#pairs) {
      client.resetAndDestroy();
      target.resetAndDestroy();
    }
  }

  /** From now on only so many more bytes come back from the target; then silence, with all connections open. */
  stallAfter(bytes: number): void {
    this.#stallAfterBytes = bytes;
  }

  /** New connections pass again. */
  heal(): void {
    this.#stallAfterBytes = undefined;
    this.reset();
  }

  async close(): Promise<void> {
    this.reset();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #join(client: Socket, target: Socket): void {
    const pair = [client, target] as const;
    this.#pairs.add(pair);
    client.on("data", (data: Buffer) => target.write(data));
    target.on("data", (data: Buffer) => {
      const left = this.#stallAfterBytes;
      if (left === undefined) client.write(data);
      else if (left > 0) {
        client.write(data.subarray(0, left));
        this.#stallAfterBytes = Math.max(0, left - data.length);
      }
    });
    for (const [one, other] of [
      [client, target],
      [target, client],
    ] as const) {
      one.on("error", () => {});
      one.once("end", () => this.#stallAfterBytes === undefined && other.end());
      one.once("close", () => {
        this.#pairs.delete(pair);
        other.destroy();
      });
    }
  }
}

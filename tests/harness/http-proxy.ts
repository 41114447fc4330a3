import { createServer, request, type Server } from "node:http";
import type { AddressInfo } from "node:net";

/** Between a client and an HTTP server: passes requests on, and keeps back the answers that it is told to. */
export class HttpProxy {
  readonly #server: Server;
  /** Answers to requests whose path begins so never arrive, though the requests do. */
  swallow: string | undefined;

  private constructor(target: string) {
    this.#server = createServer((incoming, response) => {
      const { method, headers, url = "/" } = incoming;
      const isSwallowed = this.swallow !== undefined && url.startsWith(this.swallow);
      const outgoing = request(target + url, { method, headers }, (answer) => {
        if (isSwallowed) return void answer.resume();
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
      });
      outgoing.on("error", () => response.destroy());
      response.on("close", () => !isSwallowed && outgoing.destroy());
      incoming.pipe(outgoing);
    });
  }

  static async start(target: string): Promise<HttpProxy> {
    const proxy = new HttpProxy(target);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

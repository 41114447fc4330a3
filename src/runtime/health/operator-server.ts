import { timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Logger } from "pino";
import { errorObject, StatorError, toStatorError } from "../../protocol/errors.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";

export interface OperatorRequest {
  readonly path: string;
  /** JSON of the body; undefined when there is none. */
  readonly body: unknown;
  /** Aborts when the client leaves. */
  readonly signal: AbortSignal;
}

export interface OperatorAnswer {
  readonly status: number;
  /** A text is sent as it is, anything else as JSON. */
  readonly body: unknown;
  /** Of a text. */
  readonly contentType?: string;
}

export interface OperatorRoute {
  readonly method: "GET" | "POST";
  /** Anybody who reaches the port may have it: it says nothing that is not meant for probes. */
  readonly open?: true;
  /** What it throws becomes the error body. */
  handle(request: OperatorRequest): OperatorAnswer | Promise<OperatorAnswer>;
}

export interface OperatorServerOptions {
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  /** Wanted as `Authorization: Bearer ...` by all routes that are not open. Beyond loopback they need one. */
  readonly token?: string;
  /** What it is called in messages: `admin port`. */
  readonly name: string;
  readonly logger?: Logger;
}

const MAX_BODY_BYTES = 1024 * 1024;
const MAX_CONNECTIONS = 256;
const loopbackName = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/;

/** A small HTTP server for operators and probes, never for clients. */
export class OperatorServer {
  readonly #options: OperatorServerOptions;
  readonly #find: (path: string) => ReadonlyMap<string, OperatorRoute> | undefined;
  readonly #isLoopback: boolean;
  readonly #server: Server;

  /** `find`: the routes of a path, by method. */
  constructor(options: OperatorServerOptions, find: (path: string) => readonly OperatorRoute[]) {
    this.#options = options;
    this.#find = (path) => {
      const routes = find(path);
      return routes.length === 0 ? undefined : new Map(routes.map((route) => [route.method, route]));
    };
    this.#isLoopback = loopbackName.test(options.host.includes(":") ? `[${options.host}]` : options.host);
    this.#server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, (request, response) => {
      void this.#serve(request, response);
    });
    this.#server.maxConnections = MAX_CONNECTIONS;
  }

  /** The port. */
  async listen(): Promise<number> {
    const { host, port, name, logger } = this.#options;
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen({ host, port }, () => {
        this.#server.off("error", reject);
        // Of accept, without file descriptors: the server goes on.
        this.#server.on("error", (err) => logger?.warn({ err }, `the ${name} cannot accept`));
        resolve();
      });
    });
    return (this.#server.address() as AddressInfo).port;
  }

  /** Idempotent. */
  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await closed;
  }

  /** Never rejects. */
  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let answer: OperatorAnswer;
    const headers: Record<string, string> = {};
    try {
      answer = await this.#answer(request, response, headers);
    } catch (thrown) {
      const error = toStatorError(thrown, () => uniqueId("err-"));
      if (!(thrown instanceof StatorError)) {
        this.#options.logger?.error({ err: thrown, errorId: error.id }, `the ${this.#options.name} failed`);
      }
      answer = { status: error.class.status, body: { error: errorObject(error) } };
    }
    request.resume();
    const isText = typeof answer.body === "string";
    const body = isText ? (answer.body as string) : JSON.stringify(answer.body);
    response.writeHead(answer.status, {
      ...headers,
      "content-type": isText ? (answer.contentType ?? "text/plain; charset=utf-8") : "application/json",
      "content-length": Buffer.byteLength(body),
    });
    response.end(body);
  }

  async #answer(
    request: IncomingMessage,
    response: ServerResponse,
    headers: Record<string, string>,
  ): Promise<OperatorAnswer> {
    const { name } = this.#options;
    // A page of another site that a name of its own leads here (DNS rebinding) sends that name.
    if (this.#isLoopback && !loopbackName.test(request.headers.host ?? "")) {
      throw new StatorError("invalid_header", `The ${name} answers under loopback names only.`, { param: "host" });
    }
    const path = (request.url ?? "/").split("?", 1)[0]!;
    const routes = this.#find(path);
    if (routes === undefined) {
      throw new StatorError("route_not_found", `The ${name} has no page ${JSON.stringify(path.slice(0, 200))}.`);
    }
    const route = routes.get(request.method === "HEAD" ? "GET" : (request.method ?? ""));
    if (route === undefined) {
      const methods = [...routes.keys()];
      headers.allow = (routes.has("GET") ? [...methods, "HEAD"] : methods).join(", ");
      throw new StatorError("method_not_allowed", `${path} only takes ${methods.join(" and ")}.`);
    }
    if (route.open !== true) this.#authorize(request);
    const leave = new AbortController();
    response.once("close", () => leave.abort(new StatorError("client_closed", "The client has left.")));
    const body = route.method === "POST" ? await readJson(request) : undefined;
    return route.handle({ path, body, signal: leave.signal });
  }

  #authorize(request: IncomingMessage): void {
    const { token, name } = this.#options;
    // A page of another site can make a browser ask, even though it does not get to see the answer.
    const site = request.headers["sec-fetch-site"];
    if (site !== undefined && site !== "same-origin" && site !== "none") {
      throw new StatorError("permission_denied", `The ${name} does nothing for pages of other sites.`);
    }
    if (token === undefined) {
      if (this.#isLoopback) return;
      throw new StatorError("permission_denied", `The ${name} is open beyond loopback and has no token.`);
    }
    const given = Buffer.from(request.headers.authorization ?? "");
    const wanted = Buffer.from(`Bearer ${token}`);
    if (given.length === wanted.length && timingSafeEqual(given, wanted)) return;
    throw new StatorError("permission_denied", `The ${name} wants its token as Authorization: Bearer.`);
  }
}

async function readJson(request: IncomingMessage): Promise<unknown> {
  // A page of another site can send a form or text without asking, but not this type.
  const type = request.headers["content-type"];
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request) {
    size += (part as Buffer).length;
    if (size > MAX_BODY_BYTES) {
      throw new StatorError("payload_too_large", `The body is over ${MAX_BODY_BYTES} bytes.`);
    }
    parts.push(part as Buffer);
  }
  if (type === undefined && size === 0 && request.headers.origin === undefined) return undefined;
  if (!/^application\/json\b/i.test(type ?? "")) {
    throw new StatorError("unsupported_media_type", "Send the body as application/json.", { param: "content-type" });
  }
  if (size === 0) return undefined;
  try {
    return JSON.parse(Buffer.concat(parts).toString());
  } catch {
    throw new StatorError("invalid_json", "The body is not JSON.");
  }
}

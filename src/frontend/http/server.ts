import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Registry } from "prom-client";
import { StatorError } from "../../protocol/errors.ts";
import type { Admission } from "../admission/admission.ts";
import type { FrontendOptions } from "../options.ts";
import { catalogued } from "../pipeline/catalogued.ts";
import type { Services } from "../pipeline/services.ts";
import { answerBrokenHttp } from "./broken-http.ts";
import { Exchange } from "./exchange.ts";
import type { HealthReport } from "./health.ts";
import { InferenceRoutes } from "./inference-routes.ts";
import { modelList, oneModel } from "./model-routes.ts";
import { checkHeaders } from "./request-headers.ts";

const MODEL_PREFIX = "/v1/models/";
/** Connections beyond one per stream: health checks, metrics, idle keep-alive. */
const SPARE_CONNECTIONS = 4096;

/** At the end, open answers have so long to send their error. */
const LAST_WORDS_MS = 500;

interface Route {
  readonly methods: readonly string[];
  readonly handle: (exchange: Exchange) => Promise<void> | void;
}

/** The client port: the OpenAI APIs, health and metrics. */
export class HttpServer {
  readonly #server: Server;
  readonly #services: Services;
  readonly #admission: Admission;
  readonly #options: FrontendOptions;
  readonly #routes: ReadonlyMap<string, Route>;
  readonly #modelRoute: Route;
  /** Exchanges that are not over, by connection: several when the client pipelines. */
  readonly #active = new Map<Socket, Set<Exchange>>();
  readonly #healthReport: () => HealthReport;

  constructor(
    services: Services,
    admission: Admission,
    registry: Registry,
    options: FrontendOptions,
    health: () => HealthReport,
  ) {
    this.#healthReport = health;
    this.#services = services;
    this.#admission = admission;
    this.#options = options;
    const { http } = options;
    const inference = new InferenceRoutes(services, admission, http);
    const get = (handle: Route["handle"]): Route => ({ methods: ["GET", "HEAD"], handle });
    const post = (handle: Route["handle"]): Route => ({ methods: ["POST"], handle });
    this.#routes = new Map<string, Route>([
      ["/v1/chat/completions", post((exchange) => inference.serve("chat", exchange))],
      ["/v1/completions", post((exchange) => inference.serve("completions", exchange))],
      ["/v1/embeddings", post((exchange) => inference.serve("embeddings", exchange))],
      ["/v1/models", get((exchange) => exchange.sendJson(200, modelList(services.catalog)))],
      ["/health", get((exchange) => this.#health(exchange))],
      ["/live", get((exchange) => exchange.sendJson(200, `{"status":"live"}`))],
      ["/metrics", get(async (exchange) => exchange.send(200, registry.contentType, await registry.metrics()))],
    ]);
    this.#modelRoute = get((exchange) =>
      exchange.sendJson(200, oneModel(services.catalog, exchange.path.slice(MODEL_PREFIX.length))),
    );
    this.#server = createServer({
      maxHeaderSize: http.maxHeaderBytes,
      headersTimeout: http.headersTimeoutMs,
      requestTimeout: http.headersTimeoutMs + http.bodyTimeoutMs,
      connectionsCheckingInterval: Math.min(1_000, Math.max(50, http.headersTimeoutMs / 4)),
      keepAliveTimeout: http.keepAliveTimeoutMs,
      requireHostHeader: false, // checked here, for an answer of our own
      noDelay: true,
    });
    this.#server.maxConnections = http.maxStreams + SPARE_CONNECTIONS;
    this.#server.on("request", (request, response) => this.#accept(request, response, false));
    this.#server.on("checkContinue", (request, response) => this.#accept(request, response, true));
    this.#server.on("checkExpectation", (request, response) => this.#refuseExpectation(request, response));
    this.#server.on("clientError", (error, socket) =>
      answerBrokenHttp(error, socket, services.wheel, (told) => services.metrics.requestFailed(told)),
    );
  }

  /** Resolves with the port. */
  async listen(): Promise<number> {
    const { host, port } = this.#options.http;
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen({ host, port, backlog: 1024 }, () => {
        this.#server.off("error", reject);
        resolve();
      });
    });
    return (this.#server.address() as AddressInfo).port;
  }

  /** Connections without a request are closed now, the others when their answer is complete. */
  closeIdle(): void {
    this.#server.closeIdleConnections();
  }

  /** Stops listening and ends every answer: open streams with an error frame. Idempotent. */
  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    const active = [...this.#active.values()].flatMap((exchanges) => [...exchanges]);
    for (const exchange of active) {
      exchange.giveUp(new StatorError("draining", "The server is shutting down.", { retryAfterSeconds: 1 }));
    }
    const cut = this.#services.wheel.schedule(LAST_WORDS_MS, () => this.#server.closeAllConnections());
    await Promise.all(active.map((exchange) => exchange.whenOver()));
    cut.cancel();
    this.#server.closeAllConnections();
    await closed;
  }

  #accept(request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): void {
    const exchange = this.#exchange(request, response, expectsContinue);
    this.#track(request.socket, exchange);
    if (this.#admission.draining) response.setHeader("connection", "close");
    this.#dispatch(exchange).catch((thrown: unknown) => {
      this.#services.logger.error({ err: thrown, requestId: exchange.requestId }, "an answer failed");
      response.destroy();
    });
  }

  #track(socket: Socket, exchange: Exchange): void {
    let exchanges = this.#active.get(socket);
    if (exchanges === undefined) {
      exchanges = new Set();
      this.#active.set(socket, exchanges);
      socket.once("close", () => {
        for (const waiting of this.#active.get(socket) ?? []) waiting.connectionClosed();
        this.#active.delete(socket);
      });
    }
    exchanges.add(exchange);
    void exchange.whenOver().then(() => exchanges.delete(exchange));
  }

  async #dispatch(exchange: Exchange): Promise<void> {
    try {
      checkHeaders(exchange.request);
      await this.#route(exchange)?.handle(exchange);
    } catch (thrown) {
      const error = catalogued(thrown);
      if (error.code === "internal_error") {
        this.#services.logger.error({ err: error.cause, errorId: error.id }, "internal error");
      }
      this.#services.metrics.requestFailed(error);
      await exchange.sendError(error);
    }
  }

  /** The route of the path and method; undefined when the answer was given here. */
  #route(exchange: Exchange): Route | undefined {
    const { path } = exchange;
    const { method = "GET" } = exchange.request;
    const route =
      this.#routes.get(path) ??
      (path.startsWith(MODEL_PREFIX) && path.length > MODEL_PREFIX.length ? this.#modelRoute : undefined);
    if (route === undefined) {
      throw new StatorError("route_not_found", `There is no route ${method} ${JSON.stringify(path.slice(0, 200))}.`);
    }
    if (route.methods.includes(method)) return route;
    const allow = [...route.methods, "OPTIONS"].join(", ");
    exchange.response.setHeader("allow", allow);
    if (method !== "OPTIONS") {
      throw new StatorError("method_not_allowed", `${path.slice(0, 200)} does not take ${method}; it takes ${allow}.`);
    }
    exchange.response.writeHead(204);
    exchange.response.end();
    return undefined;
  }

  #health(exchange: Exchange): void {
    const report = this.#healthReport();
    exchange.sendJson(report.status === "ok" ? 200 : 503, JSON.stringify(report));
  }

  #refuseExpectation(request: IncomingMessage, response: ServerResponse): void {
    const error = new StatorError("invalid_header", "Only Expect: 100-continue is supported.", { param: "expect" });
    this.#exchange(request, response, true)
      .sendError(error)
      .catch(() => response.destroy());
  }

  #exchange(request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): Exchange {
    return new Exchange(request, response, {
      wheel: this.#services.wheel,
      readerTimeoutMs: this.#options.http.slowReaderTimeoutMs,
      expectsContinue,
    });
  }
}

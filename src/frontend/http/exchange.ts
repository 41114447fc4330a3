import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import { StatorError } from "../../protocol/errors.ts";
import type { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { errorBody, errorHeaders } from "./error-body.ts";
import { ReaderWatch } from "./reader-watch.ts";

/** After an early refusal the rest of the body is read and dropped, at most so long and so much ... */
const LINGER_MS = 2_000;
const LINGER_BYTES = 64 * 1024 * 1024;
/** ... because a connection that is closed with unread bytes takes the answer with it. */

const sanePattern = /^[A-Za-z0-9._:+/=@-]{1,128}$/;

/** One request and its response. */
export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Ours, unique. */
  readonly id: string;
  /** What x-request-id says: the client's own, when it is a short plain token. */
  readonly requestId: string;
  readonly arrivedAt: number = performance.now();
  /** Path without the query. */
  readonly path: string;
  /** The client waits for `100 Continue` before it sends the body. */
  readonly expectsContinue: boolean;
  readonly #wheel: TimerWheel;
  readonly #readerTimeoutMs: number;
  readonly #work = new AbortController();
  readonly #over: Promise<void>;
  #end!: () => void;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    parts: { wheel: TimerWheel; readerTimeoutMs: number; expectsContinue: boolean },
  ) {
    this.request = request;
    this.response = response;
    this.#wheel = parts.wheel;
    this.#readerTimeoutMs = parts.readerTimeoutMs;
    this.expectsContinue = parts.expectsContinue;
    this.id = uniqueId("", 24);
    const given = request.headers["x-request-id"];
    this.requestId = typeof given === "string" && sanePattern.test(given) ? given : this.id;
    this.path = pathOf(request.url ?? "/");
    response.setHeader("x-request-id", this.requestId);
    this.#over = new Promise((resolve) => {
      this.#end = resolve;
    });
    response.once("finish", this.#end);
    response.once("close", () => this.connectionClosed());
    response.on("error", () => {}); // the close that follows says it all
  }

  /** Aborts when work for this request has lost its purpose; the reason is a StatorError, `client_closed` when the client has gone. */
  get signal(): AbortSignal {
    return this.#work.signal;
  }

  /**
   * To be told by the owner of the connection: a response that waits behind an earlier one on the same connection has no
   * socket yet and hears nothing itself.
   */
  connectionClosed(): void {
    if (!this.response.writableFinished) {
      this.giveUp(new StatorError("client_closed", "The client closed the connection."));
    }
    this.#end();
  }

  /** Ends the work. Only the first reason counts. */
  giveUp(reason: StatorError): void {
    this.#work.abort(reason);
  }

  /** Resolves when the last byte of the answer has been handed to the kernel, or when the client has gone. */
  whenOver(): Promise<void> {
    return this.#over;
  }

  sendJson(status: number, body: string, headers: OutgoingHttpHeaders = {}): void {
    this.send(status, "application/json", body, headers);
  }

  send(status: number, contentType: string, body: string, headers: OutgoingHttpHeaders = {}): void {
    const { response } = this;
    if (response.headersSent || response.destroyed) return;
    response.writeHead(status, {
      ...headers,
      "content-type": contentType,
      "content-length": Buffer.byteLength(body),
    });
    response.end(body);
    this.#watchReader();
  }

  /** The error as the whole answer. Settles once the answer is on its way. */
  async sendError(error: StatorError, headers: OutgoingHttpHeaders = {}): Promise<void> {
    const { request, response } = this;
    const all = { ...errorHeaders(error), ...headers };
    if (this.#hasBody() && !request.complete && !this.expectsContinue) {
      request.resume();
      await new Promise((resolve) => setImmediate(resolve)); // most bodies are here already
      if (!request.complete) {
        await this.#sendAndLinger(error.class.status, errorBody(error), all);
        return;
      }
    }
    if (!request.complete && this.expectsContinue) all.connection = "close";
    if (response.headersSent || response.destroyed) return;
    this.sendJson(error.class.status, errorBody(error), all);
  }

  /** The whole answer goes out now; the connection is closed when the client has stopped sending. */
  async #sendAndLinger(status: number, body: string, headers: OutgoingHttpHeaders): Promise<void> {
    const { request, response } = this;
    if (response.headersSent || response.destroyed) return;
    response.writeHead(status, {
      ...headers,
      connection: "close",
      "content-type": "application/json",
      "content-length": Buffer.byteLength(body),
    });
    response.write(body);
    await new Promise<void>((resolve) => {
      let dropped = 0;
      const deadline = this.#wheel.schedule(LINGER_MS, resolve);
      const done = (): void => {
        deadline.cancel();
        resolve();
      };
      request.on("data", (part: Buffer) => {
        dropped += part.length;
        if (dropped > LINGER_BYTES) done();
      });
      request.once("end", done);
      request.once("close", done);
      request.once("error", done);
    });
    response.end();
  }

  #hasBody(): boolean {
    const { headers } = this.request;
    return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
  }

  #watchReader(): void {
    const { response } = this;
    const { socket } = response;
    if (socket === null || response.writableLength === 0) return;
    const watch = new ReaderWatch(socket, this.#wheel, this.#readerTimeoutMs, () => response.destroy());
    watch.start();
    response.once("close", () => watch.close());
  }
}

function pathOf(url: string): string {
  const path = url.startsWith("/") ? url : absolutePath(url);
  const query = path.search(/[?#]/);
  return query < 0 ? path : path.slice(0, query);
}

/** Proxies may send the absolute form. */
function absolutePath(url: string): string {
  return URL.canParse(url) ? new URL(url).pathname : url;
}

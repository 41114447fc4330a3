import { Agent, type Dispatcher, request } from "undici";
import { StatorError } from "../../../protocol/errors.ts";

/*
 * etcd's own JSON form of its v3 API (the gRPC gateway, on the client port; on by default in every etcd 3.4 and newer):
 * POST /v3/kv/range, /v3/kv/put, /v3/kv/txn, /v3/lease/grant, ... Keys and values are base64, 64-bit numbers are strings.
 * Reference: etcd-io/etcd, api/etcdserverpb/rpc.proto with its google.api.http annotations.
 */

export interface EtcdClientOptions {
  /** `http://host:port` or `https://host:port`; another one is used when one fails. */
  readonly endpoints: readonly string[];
  readonly username?: string;
  readonly password?: string;
  /** PEM texts. */
  readonly tls?: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** Default 5 s. */
  readonly requestTimeoutMs?: number;
}

/** An etcd value has at most 1.5 MB by default; a page of such would be a broken store. */
const MAX_ANSWER_BYTES = 512 * 1024 * 1024;
const MAX_WATCH_MESSAGE_LENGTH = 64 * 1024 * 1024;

/** Thousands of registrations are written at once. */
const MAX_CONNECTIONS = 64;

/** HTTP to one of the endpoints, logged in. Every failure is a StatorError. */
export class Gateway {
  readonly #options: EtcdClientOptions;
  readonly #agent: Agent;
  /** An answer that goes on takes a connection of its own. */
  readonly #watchAgent: Agent;
  #current = 0;
  #token: string | undefined;

  constructor(options: EtcdClientOptions) {
    this.#options = options;
    const { ca, cert, key } = options.tls ?? {};
    const connect = {
      timeout: options.requestTimeoutMs ?? 5_000,
      keepAlive: true,
      ...(ca === undefined ? {} : { ca }),
      ...(cert === undefined ? {} : { cert }),
      ...(key === undefined ? {} : { key }),
    };
    this.#agent = new Agent({ connections: MAX_CONNECTIONS, connect });
    this.#watchAgent = new Agent({ connect });
  }

  async post(path: string, body: object, signal: AbortSignal): Promise<unknown> {
    try {
      return await this.#ask(path, body, signal);
    } catch (error) {
      if (!(error instanceof TokenExpired)) throw asUnavailable(error);
    }
    return this.#ask(path, body, signal).catch((error: unknown) => {
      throw asUnavailable(error);
    });
  }

  /** The lines of an answer that goes on until `signal` aborts. */
  async *lines(path: string, body: object, signal: AbortSignal): AsyncGenerator<string> {
    try {
      const response = await this.#send(path, body, { signal, bodyTimeout: 0, dispatcher: this.#watchAgent });
      response.body.setEncoding("utf8");
      yield* linesOf(response.body);
    } catch (error) {
      throw asUnavailable(error);
    }
  }

  async close(): Promise<void> {
    await Promise.all([this.#agent.destroy(), this.#watchAgent.destroy()]);
  }

  async #ask(path: string, body: object, signal: AbortSignal): Promise<unknown> {
    const timeout = AbortSignal.timeout(this.#options.requestTimeoutMs ?? 5_000);
    const response = await this.#send(path, body, { signal: AbortSignal.any([signal, timeout]) });
    const text = await readText(response.body);
    const answer = JSON.parse(text) as { header?: object; result?: object } | null;
    if (!answer?.header && !answer?.result)
      throw unavailable(`${path} got no answer of an etcd: ${text.slice(0, 300)}`);
    return answer;
  }

  async #send(
    path: string,
    body: object,
    options: { signal: AbortSignal; bodyTimeout?: number; dispatcher?: Agent },
  ): Promise<Dispatcher.ResponseData> {
    const { endpoints, username, password, requestTimeoutMs = 5_000 } = this.#options;
    const used = this.#current;
    const endpoint = endpoints[used]!;
    try {
      if (username !== undefined) this.#token ??= await this.#logIn(endpoint, username, password ?? "", options.signal);
      const token = this.#token;
      const response = await request(endpoint + path, {
        method: "POST",
        dispatcher: this.#agent,
        headersTimeout: requestTimeoutMs,
        bodyTimeout: requestTimeoutMs,
        headers: { "content-type": "application/json", ...(token && { authorization: token }) },
        body: JSON.stringify(body),
        ...options,
      });
      if (response.statusCode === 200) return response;
      const text = await readText(response.body);
      if (token !== undefined && staleToken.test(text)) {
        if (this.#token === token) this.#token = undefined;
        throw new TokenExpired();
      }
      throw unavailable(`${path} answered ${response.statusCode}: ${text.slice(0, 300)}`);
    } catch (error) {
      // Of several that fail together only the first moves on, or they would move in a circle.
      const another = !(error instanceof TokenExpired) && this.#current === used;
      if (another) this.#current = (used + 1) % endpoints.length;
      throw error;
    }
  }

  async #logIn(endpoint: string, name: string, password: string, signal: AbortSignal): Promise<string> {
    const { statusCode, body } = await request(`${endpoint}/v3/auth/authenticate`, {
      method: "POST",
      dispatcher: this.#agent,
      signal,
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ name, password }),
    });
    const text = await readText(body);
    if (statusCode === 200) return (JSON.parse(text) as { token: string }).token;
    throw unavailable(`etcd refused the user ${JSON.stringify(name)}: ${text.slice(0, 300)}`);
  }
}

const staleToken = /invalid auth token|token is not provided|revision of auth store is old/;

class TokenExpired extends Error {
  override readonly message = "the login has expired";
}

/** Each part is looked at once, however long the line is. */
async function* linesOf(texts: AsyncIterable<string>): AsyncGenerator<string> {
  let begun: string[] = [];
  let length = 0;
  for await (const text of texts) {
    let from = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
      yield begun.join("") + text.slice(from, end);
      [begun, length, from] = [[], 0, end + 1];
    }
    begun.push(text.slice(from));
    length += text.length - from;
    if (length > MAX_WATCH_MESSAGE_LENGTH) throw unavailable("a watch message is too large");
  }
}

async function readText(body: Dispatcher.ResponseData["body"]): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of body) {
    size += (part as Buffer).length;
    if (size > MAX_ANSWER_BYTES) throw unavailable(`an answer is over ${MAX_ANSWER_BYTES} bytes`);
    parts.push(part as Buffer);
  }
  return Buffer.concat(parts).toString();
}

export function unavailable(reason: string, cause?: unknown): StatorError {
  return new StatorError("discovery_unavailable", `etcd: ${reason}.`, { cause });
}

function asUnavailable(error: unknown): StatorError {
  if (error instanceof StatorError) return error;
  const { name, code, message } = error as NodeJS.ErrnoException;
  if (name === "TimeoutError") return unavailable("no answer in time", error);
  const isCertificate = typeof code === "string" && /CERT|SIGNED|VERIFY|^ERR_TLS/.test(code);
  const advice = isCertificate ? " (tls.ca names the authorities that may sign its certificate)" : "";
  return unavailable((message || code) + advice, error);
}

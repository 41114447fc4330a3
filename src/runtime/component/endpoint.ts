import { StatorError } from "../../protocol/errors.ts";
import type { EndpointCodec, EndpointInfo } from "../../protocol/instance.ts";
import { decodeMessage, encodeMessage } from "../../protocol/message-codec.ts";
import type { Discovery } from "../discovery/discovery.ts";
import { Canary } from "../health/canary.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import type { CallHandler, IncomingCall, RequestPlaneClient } from "../request-plane/plane.ts";
import { EndpointClient } from "./endpoint-client.ts";
import type { Place, ServedEndpoint } from "./served-component.ts";

export interface EndpointOptions<Request> {
  /** What `serve` advertises; callers follow it. Default msgpack. */
  readonly codec?: EndpointCodec;
  /**
   * Checks what came over the wire; what it throws becomes `invalid_value` at the caller (a zod schema's `parse` fits).
   * Without it the handler gets whatever was sent.
   */
  readonly parse?: (value: unknown) => Request;
}

export interface ServeOptions<Request> {
  /**
   * An endpoint that has been idle is called with this request, in this process. Until the first message comes again it is
   * not ready: not in discovery, and `/health` says why. The same holds when calls run and none of them brings a message
   * for `stallMs`. Defaults: after 10 s idle, 3 s for the first message, 60 s.
   */
  readonly canary?: {
    readonly request: Request;
    readonly idleMs?: number;
    readonly timeoutMs?: number;
    readonly stallMs?: number;
  };
}

export interface CallContext {
  readonly requestId: string;
  /** Milliseconds that the caller waits. */
  readonly timeoutMs: number;
  /** W3C traceparent of the caller. */
  readonly traceparent: string | undefined;
  /** The caller has left, or time is up. */
  readonly signal: AbortSignal;
}

/** Each yielded value is one message to the caller. What it throws ends the call with that error. */
export type EndpointHandler<Request, Response> = (request: Request, context: CallContext) => AsyncIterable<Response>;

/** What an endpoint needs of its runtime. */
export interface EndpointHost {
  readonly parts: { readonly discovery: Discovery; readonly client: RequestPlaneClient };
  /** Aborts when the shutdown begins. */
  readonly stopping: AbortSignal;
  serve(place: Place, info: EndpointInfo, handler: CallHandler): Promise<ServedEndpoint>;
}

/** The name of a streaming endpoint, and the types of what goes through it. */
export class Endpoint<Request, Response> {
  readonly component: Place;
  readonly name: string;
  readonly #runtime: EndpointHost;
  readonly #options: EndpointOptions<Request>;

  /** @internal */
  constructor(runtime: EndpointHost, component: Place, name: string, options: EndpointOptions<Request>) {
    this.#runtime = runtime;
    this.component = component;
    this.name = name;
    this.#options = options;
  }

  /** On the request plane first, in discovery last: whoever finds it can call it. */
  async serve(
    handler: EndpointHandler<Request, Response>,
    options: ServeOptions<Request> = {},
  ): Promise<ServedEndpoint> {
    const { codec = "msgpack", parse } = this.#options;
    const canary = options.canary && this.#canary(handler, options.canary, (problem) => served.report(problem));
    const served = await this.#runtime.serve(this.component, { name: this.name, codec }, async (call) => {
      const request = read(call, codec, parse);
      call.accept(0);
      const { requestId, timeoutMs, traceparent, signal } = call;
      let ended = canary?.begin();
      let worked = false;
      try {
        for await (const message of handler(request, { requestId, timeoutMs, traceparent, signal })) {
          worked = true;
          canary?.progress();
          if (call.send(encodeMessage(message, codec))) continue;
          // Waiting for the caller is no work.
          ended?.(true);
          ended = undefined;
          await call.ready();
          ended = canary?.begin();
        }
      } finally {
        ended?.(worked);
      }
    });
    if (canary === undefined) return served;
    const { stopping } = this.#runtime;
    const stop = (): void => {
      canary.stop();
      stopping.removeEventListener("abort", stop);
    };
    stopping.addEventListener("abort", stop);
    if (stopping.aborted) stop();
    else canary.start();
    return {
      ...served,
      close: () => {
        stop();
        return served.close();
      },
    };
  }

  #canary(
    handler: EndpointHandler<Request, Response>,
    { request, ...times }: NonNullable<ServeOptions<Request>["canary"]>,
    onResult: (problem: string | undefined) => void,
  ): Canary {
    const timeoutMs = times.timeoutMs ?? 3_000;
    return new Canary({
      ...times,
      timeoutMs,
      probe: async (signal) => {
        const context = { requestId: uniqueId("canary-"), timeoutMs, traceparent: undefined, signal };
        for await (const _message of handler(request, context)) return;
        throw new StatorError("engine_error", "The canary got no message.");
      },
      onResult,
    });
  }

  /** Follows discovery until it is closed. */
  client(): EndpointClient<Request, Response> {
    return new EndpointClient(this.#runtime.parts, this.component, this.name);
  }
}

function read<Request>(
  call: IncomingCall,
  codec: EndpointCodec,
  parse: ((value: unknown) => Request) | undefined,
): Request {
  const value = decodeMessage(call.body, codec);
  if (parse === undefined) return value as Request;
  try {
    return parse(value);
  } catch (cause) {
    if (cause instanceof StatorError) throw cause;
    throw new StatorError("invalid_value", `Endpoint ${call.endpoint} refused the request: ${String(cause)}`, {
      cause,
    });
  }
}

import { type ErrorCode, StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, codecOfEndpoint, type InstanceRecord } from "../../protocol/instance.ts";
import { decodeMessage, encodeMessage } from "../../protocol/message-codec.ts";
import type { Discovery, Watch } from "../discovery/discovery.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import { CallStream } from "../request-plane/call-stream.ts";
import type { RequestPlaneClient } from "../request-plane/plane.ts";

export interface CallOptions {
  readonly signal?: AbortSignal;
  /** Default 30 s. */
  readonly timeoutMs?: number;
  /** This instance and no other. */
  readonly instanceId?: string;
  readonly requestId?: string;
  /** W3C traceparent. */
  readonly traceparent?: string;
}

const MAX_TRIES = 3;
/** The call has not begun anywhere, so another instance may be asked. */
const notBegun: ReadonlySet<ErrorCode> = new Set(["worker_unreachable", "draining", "overloaded"]);

/** The instances of one endpoint, and calls to them in turn. */
export class EndpointClient<Request, Response> {
  readonly #plane: RequestPlaneClient;
  readonly #endpoint: string;
  readonly #label: string;
  readonly #watch: Watch;
  readonly #instances = new Map<string, InstanceRecord>();
  readonly #listeners = new Set<() => void>();
  #turn = 0;
  #closed = false;

  constructor(
    parts: { readonly discovery: Discovery; readonly client: RequestPlaneClient },
    component: { readonly namespace: string; readonly name: string },
    endpoint: string,
  ) {
    this.#plane = parts.client;
    this.#endpoint = endpoint;
    this.#label = `${component.namespace}/${component.name}/${endpoint}`;
    this.#watch = parts.discovery.watch(
      { namespace: component.namespace, component: component.name },
      {
        onUpsert: (record) => {
          if (record.endpoints.some(({ name }) => name === endpoint)) this.#instances.set(record.workerId, record);
          else this.#instances.delete(record.workerId);
          this.#changed();
        },
        onRemoved: ({ workerId }) => {
          this.#instances.delete(workerId);
          this.#changed();
        },
        onSynced() {},
      },
    );
  }

  instances(): readonly InstanceRecord[] {
    return [...this.#instances.values()];
  }

  /** Until at least `count` instances are there; rejects with `not_ready` after `timeoutMs`. */
  async ready(options: { count?: number; timeoutMs?: number; signal?: AbortSignal } = {}): Promise<void> {
    const { count = 1, timeoutMs = 30_000, signal } = options;
    const enough = (): boolean => this.#instances.size >= count;
    if (!(await this.#until(enough, timeoutMs, signal))) throw this.#nobody(timeoutMs);
  }

  /**
   * The messages of one call. An instance that has not taken the call is replaced by another one, up to three times; one
   * that has taken it ends it. Leaving the iteration ends the call. An instance that takes the call and is gone before the
   * caller hears so is replaced too: what must not happen twice needs an id of its own in the request.
   */
  async *call(request: Request, options: CallOptions = {}): AsyncGenerator<Response, void, undefined> {
    const { timeoutMs = 30_000, requestId = uniqueId(), traceparent, instanceId } = options;
    const signal = options.signal ?? new AbortController().signal;
    const deadline = performance.now() + timeoutMs;
    const failed = new Set<string>();
    for (let tries = 1; ; tries++) {
      const target = await this.#pick(failed, instanceId, deadline - performance.now(), signal);
      const codec = codecOfEndpoint(target, this.#endpoint);
      const call = {
        endpoint: calledEndpoint(target, this.#endpoint),
        requestId,
        body: encodeMessage(request, codec),
        timeoutMs: Math.max(1, deadline - performance.now()),
        ...(traceparent === undefined ? {} : { traceparent }),
      };
      const messages = new CallStream(
        (sink) => this.#plane.open(target.address, call, sink),
        (bytes) => decodeMessage(bytes, codec) as Response,
        signal,
        { onAbort: "kill" },
      );
      try {
        yield* messages;
        return;
      } catch (error) {
        const refused = error instanceof StatorError && notBegun.has(error.code) && !messages.accepted;
        const again = refused && !signal.aborted && !this.#closed;
        if (!again || tries === MAX_TRIES || instanceId !== undefined) throw error;
        failed.add(target.workerId);
      }
    }
  }

  /** For an endpoint that answers with one message. */
  async ask(request: Request, options: CallOptions = {}): Promise<Response> {
    for await (const message of this.call(request, options)) return message;
    throw new StatorError("protocol_error", `${this.#label} ended without a message.`);
  }

  /** Running calls go on; those that wait for an instance end. */
  close(): void {
    this.#closed = true;
    this.#watch.close();
    this.#instances.clear();
    this.#changed();
  }

  async #pick(
    failed: ReadonlySet<string>,
    instanceId: string | undefined,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<InstanceRecord> {
    const candidates = (): InstanceRecord[] => {
      const all = [...this.#instances.values()].filter((it) => instanceId === undefined || it.workerId === instanceId);
      const fresh = all.filter(({ workerId }) => !failed.has(workerId));
      return fresh.length > 0 ? fresh : all;
    };
    if (!(await this.#until(() => candidates().length > 0, timeoutMs, signal))) throw this.#nobody(timeoutMs);
    const all = candidates();
    return all[this.#turn++ % all.length]!;
  }

  /** False when time is up, or the client closed. Rejects when `signal` aborts. */
  #until(condition: () => boolean, timeoutMs: number, signal?: AbortSignal): Promise<boolean> {
    if (condition() || this.#closed) return Promise.resolve(condition());
    return new Promise((resolve, reject) => {
      const settle = (): void => {
        clearTimeout(timer);
        this.#listeners.delete(look);
        signal?.removeEventListener("abort", onAbort);
      };
      const look = (): void => {
        if (!condition() && !this.#closed) return;
        settle();
        resolve(condition());
      };
      const onAbort = (): void => {
        settle();
        reject(signal?.reason);
      };
      const timer = setTimeout(
        () => {
          settle();
          resolve(false);
        },
        Math.max(0, timeoutMs),
      );
      this.#listeners.add(look);
      if (signal?.aborted) onAbort();
      else signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  #nobody(timeoutMs: number): StatorError {
    if (this.#closed) return new StatorError("draining", `The client of ${this.#label} is closed.`);
    return new StatorError("not_ready", `No instance serves ${this.#label} after ${Math.round(timeoutMs)} ms.`);
  }

  #changed(): void {
    for (const listener of [...this.#listeners]) listener();
  }
}

import type { Logger } from "pino";
import { StatorError, toStatorError } from "../../protocol/errors.ts";
import type { TimerWheel } from "../lifecycle/timer-wheel.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import { type RequestPlaneLimits, type StreamLimits, smallerOf } from "./limits.ts";
import { deadlineExceeded } from "./outgoing-stream.ts";
import type { CallHandler } from "./plane.ts";
import { type CallWire, type OpenedCall, RunningCall } from "./running-call.ts";

/** Part of the message to a caller with an old address. */
export const NOT_HERE = "is not at this address any more";

/** Runs the calls of a server: finds the handler, watches the deadline, maps what it throws. The same for every plane. */
export class CallRunner {
  readonly #handlers = new Map<string, CallHandler>();
  readonly #running = new Set<RunningCall>();
  readonly #limits: RequestPlaneLimits;
  readonly #wheel: TimerWheel;
  readonly #logger: Logger | undefined;
  #accepting = true;

  constructor(limits: RequestPlaneLimits, wheel: TimerWheel, logger: Logger | undefined) {
    this.#limits = limits;
    this.#wheel = wheel;
    this.#logger = logger;
  }

  get size(): number {
    return this.#running.size;
  }

  get isAccepting(): boolean {
    return this.#accepting;
  }

  handle(endpoint: string, handler: CallHandler): void {
    if (this.#handlers.has(endpoint)) throw new RangeError(`endpoint ${endpoint} has a handler already`);
    this.#handlers.set(endpoint, handler);
  }

  stopAccepting(): void {
    this.#accepting = false;
  }

  /**
   * Starts a call of a client with the limits `theirs`; a refusal goes to `wire`, and the result is undefined. `onOver`
   * runs once, when the call has ended.
   */
  start(opened: OpenedCall, wire: CallWire, theirs: StreamLimits, onOver: () => void): RunningCall | undefined {
    const handler = this.#handlers.get(opened.endpoint);
    const refusal = this.#accepting
      ? handler
        ? undefined
        : this.#unknown(opened.endpoint)
      : new StatorError("draining", "The worker is shutting down.");
    if (refusal || !handler) {
      wire.error(refusal!);
      return undefined;
    }
    const call = new RunningCall(opened, wire, smallerOf(this.#limits, theirs));
    this.#running.add(call);
    void this.#run(handler, call, onOver);
    return call;
  }

  abortAll(reason: StatorError): void {
    for (const call of this.#running) call.abort(reason);
  }

  async #run(handler: CallHandler, call: RunningCall, onOver: () => void): Promise<void> {
    const deadline = this.#wheel.schedule(call.timeoutMs, () => call.abort(deadlineExceeded(call.timeoutMs)));
    let error: StatorError | undefined;
    try {
      await undefined; // what arrived together with the open, a cancel for example, is known by then
      call.signal.throwIfAborted();
      await handler(call);
    } catch (thrown) {
      error = this.#map(thrown, call);
    }
    deadline.cancel();
    this.#running.delete(call);
    call.finish(error);
    onOver();
  }

  /** A caller that means an instance which is not here has an old address; another instance may serve it. */
  #unknown(endpoint: string): StatorError {
    const at = endpoint.lastIndexOf("@");
    const known = at < 0 || [...this.#handlers.keys()].some((it) => it.endsWith(endpoint.slice(at)));
    return known
      ? new StatorError("protocol_error", `This worker has no endpoint ${JSON.stringify(endpoint)}.`)
      : new StatorError("worker_unreachable", `${JSON.stringify(endpoint)} ${NOT_HERE}.`);
  }

  #map(thrown: unknown, call: RunningCall): StatorError {
    const { endpoint, requestId } = call;
    const error = toStatorError(thrown, () => uniqueId("err-"));
    if (!(thrown instanceof StatorError)) {
      this.#logger?.error({ err: thrown, errorId: error.id, endpoint, requestId }, "a call handler failed");
    }
    return error;
  }
}

import type { Logger } from "pino";
import { codecOf, decodeGenerateRequest, encodeTokenDelta } from "../../protocol/codec.ts";
import type { Engine } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { Finish, GenerateRequest } from "../../protocol/generate.ts";
import type { EndpointCodec } from "../../protocol/instance.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import type { IncomingCall } from "../../runtime/request-plane/plane.ts";
import type { Admission } from "./admission.ts";
import { endEngineSpan, startEngineSpan } from "./engine-span.ts";
import type { EngineWatch } from "./engine-watch.ts";
import type { HandOver } from "./hand-over.ts";
import type { TurnBudget } from "./turn-budget.ts";
import { unlessAborted } from "./unless-aborted.ts";

export interface GenerateService {
  readonly engine: Engine;
  readonly admission: Admission;
  readonly turns: TurnBudget;
  readonly watch: EngineWatch;
  readonly handOver: HandOver;
  readonly logger: Logger | undefined;
}

/** One call of the `generate` endpoint: admit, run, stream, end. */
export async function serveGenerate(call: IncomingCall, service: GenerateService): Promise<void> {
  const request = decodeGenerateRequest(call.body);
  const joined = service.handOver.join(call.signal);
  try {
    const ticket = service.admission.enter(joined.signal);
    try {
      call.accept(ticket.queuePosition);
      if (ticket.queuePosition > 0) await ticket.started;
      await new GenerateRun(call, request, joined.signal, service).run();
    } finally {
      ticket.leave();
    }
  } finally {
    joined.close();
  }
}

/** A request that has its slot. */
class GenerateRun {
  readonly #call: IncomingCall;
  readonly #request: GenerateRequest;
  /** The call's, or the host's that has to go. */
  readonly #signal: AbortSignal;
  readonly #service: GenerateService;
  /** The answer comes in the form of the question. */
  readonly #codec: EndpointCodec;
  #sentTokens = 0;
  #finish: Finish | undefined;

  constructor(call: IncomingCall, request: GenerateRequest, signal: AbortSignal, service: GenerateService) {
    this.#call = call;
    this.#request = request;
    this.#signal = signal;
    this.#service = service;
    this.#codec = codecOf(call.body);
  }

  async run(): Promise<void> {
    const { requestId, traceparent, signal } = this.#call;
    const { watch } = this.#service;
    const span = startEngineSpan(traceparent, requestId, this.#request.tokens.length);
    let error: StatorError | undefined;
    watch.engineBusy();
    try {
      await this.#pump();
      this.#checkEnd();
      // `stop` ends properly with the engine's last words; a deadline is an error whatever the engine said.
      if (signal.aborted && !isClientClosed(signal.reason)) throw signal.reason;
      if (this.#isHandedOver(this.#finish)) throw this.#signal.reason;
    } catch (thrown) {
      error = this.#asError(thrown);
      throw error;
    } finally {
      watch.engineFree();
      endEngineSpan(span, this.#finish, error);
    }
  }

  /** The hot loop: once per delta. Leaving it by an error makes the engine free the request (`return()`). */
  async #pump(): Promise<void> {
    const call = this.#call;
    const { engine, turns, watch } = this.#service;
    for await (const delta of engine.generate(this.#request, this.#signal)) {
      watch.step();
      if (this.#finish) throw this.#engineError("The engine went on after it had finished.");
      const count = delta.tokens.length;
      this.#sentTokens += count;
      this.#finish = delta.finish;
      if (count === 0 && !delta.finish) continue; // a sign of life, nothing to tell
      if (this.#isHandedOver(delta.finish)) continue; // the error that follows is the end, not this finish
      if (!call.send(encodeTokenDelta(delta, this.#codec)) && !delta.finish) await this.#waitForClient();
      const nextTurn = turns.spend();
      if (nextTurn) await nextTurn;
    }
  }

  async #waitForClient(): Promise<void> {
    const { watch } = this.#service;
    watch.engineFree();
    try {
      await unlessAborted(this.#call.ready(), this.#signal);
    } catch (thrown) {
      // The engine hears of the abort by its signal, and says its last words.
      if (!this.#signal.aborted) throw thrown;
    } finally {
      watch.engineBusy();
    }
  }

  #checkEnd(): void {
    const { requestId } = this.#call;
    if (!this.#finish) {
      if (this.#signal.aborted) throw this.#signal.reason;
      throw this.#engineError("The engine ended without a finish.");
    }
    const { completionTokens } = this.#finish.usage;
    const made = (this.#request.generated?.length ?? 0) + this.#sentTokens;
    if (completionTokens === made) return;
    this.#service.logger?.warn({ requestId, made, reported: completionTokens }, "usage mismatch");
  }

  /** The engine stopped because the worker has to go, and not because it or the caller was done. */
  #isHandedOver(finish: Finish | undefined): boolean {
    return finish?.reason === "abort" && this.#service.handOver.begun && !this.#call.signal.aborted;
  }

  #asError(thrown: unknown): StatorError {
    const signal = this.#signal;
    if (signal.aborted && signal.reason instanceof StatorError) return signal.reason;
    return thrown instanceof StatorError ? thrown : this.#engineError("The engine failed on this request.", thrown);
  }

  #engineError(message: string, cause?: unknown): StatorError {
    const id = uniqueId("err-");
    const { requestId } = this.#call;
    this.#service.logger?.error({ err: cause, errorId: id, requestId }, message);
    return new StatorError("engine_error", `${message} Error id ${id}.`, { id, cause });
  }
}

function isClientClosed(reason: unknown): boolean {
  return reason instanceof StatorError && reason.code === "client_closed";
}

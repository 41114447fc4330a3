import { StatorError } from "../protocol/errors.ts";
import type { DisaggregatedEngine, SimulatedRequest } from "./engine.ts";
import type { Links } from "./links.ts";

export interface Handoff {
  /** What the client asked for: the whole prompt and all tokens of the answer, at least 2. */
  readonly request: SimulatedRequest;
  readonly source: DisaggregatedEngine;
  readonly target: DisaggregatedEngine;
  /** Links that the KV goes over, at once. */
  readonly links: readonly number[];
  readonly kvBytesPerToken: number;
  /**
   * `source` (vLLM): the whole prompt's KV is moved when the prefill is over, and the decode engine admits the request
   * after that. `target` (SGLang): the decode engine reserves blocks first, then what it has not cached is moved.
   */
  readonly order: "source" | "target";
}

interface Moving extends Handoff {
  prefilled: boolean;
  /** Tokens to move; unknown until the target has reserved. */
  missingTokens: number | undefined;
  moving: boolean;
}

/**
 * Brings KV from prefill engines to decode engines. The driver tells what happens, and steps it like an engine:
 *
 *     order "source"   begin -> prefilled -> transfer -> source releases, target gets the request (kv: "arrived")
 *     order "target"   begin: target gets it (kv: "awaited") -> reserved and prefilled, in any order -> transfer
 *                        -> source releases, target decodes
 *
 * The prefill itself is the driver's to submit, with `holdKv`. Request and transfer have the same id.
 */
export class KvHandoffs {
  readonly #links: Links;
  readonly #handoffs = new Map<number, Moving>();

  constructor(links: Links) {
    this.#links = links;
  }

  /** When the next transfer is over. */
  get nextWorkAtMs(): number {
    return this.#links.nextWorkAtMs;
  }

  begin(handoff: Handoff, nowMs: number): void {
    const { request, order, target } = handoff;
    if (this.#handoffs.has(request.id)) {
      throw new StatorError("invalid_value", `Request id ${request.id} is in use`, { param: "id" });
    }
    const missingTokens = order === "source" ? request.inputTokens : undefined;
    this.#handoffs.set(request.id, { ...handoff, prefilled: false, missingTokens, moving: false });
    if (order === "target") target.submit(decodePart(request, "awaited"), nowMs);
  }

  /** The prefill engine has finished the request. */
  prefilled(id: number, nowMs: number): void {
    const handoff = this.#handoffs.get(id);
    if (handoff === undefined) return;
    handoff.prefilled = true;
    this.#moveIfReady(handoff, nowMs);
  }

  /** The decode engine has admitted the request, and misses so many tokens. For others than awaited ones nothing happens. */
  reserved(id: number, missingTokens: number, nowMs: number): void {
    const handoff = this.#handoffs.get(id);
    if (handoff === undefined || handoff.missingTokens !== undefined) return;
    handoff.missingTokens = missingTokens;
    this.#moveIfReady(handoff, nowMs);
  }

  /** Forgets a request that was cancelled, or one of whose engines died. Cancelling it in the engines is the driver's. */
  cancel(id: number, nowMs: number): boolean {
    this.#links.cancel(id, nowMs);
    return this.#handoffs.delete(id);
  }

  /** Completes the transfers that are over, and returns their ids. */
  step(nowMs: number): number[] {
    const over = this.#links.step(nowMs);
    for (const id of over) {
      const handoff = this.#handoffs.get(id);
      if (handoff === undefined) continue;
      this.#handoffs.delete(id);
      handoff.source.releaseHeld(id, nowMs);
      if (handoff.order === "target") handoff.target.kvArrived(id, nowMs);
      else handoff.target.submit(decodePart(handoff.request, "arrived"), nowMs);
    }
    return over;
  }

  #moveIfReady(handoff: Moving, nowMs: number): void {
    if (handoff.moving || !handoff.prefilled || handoff.missingTokens === undefined) return;
    handoff.moving = true;
    this.#links.start(handoff.request.id, handoff.missingTokens * handoff.kvBytesPerToken, handoff.links, nowMs);
  }
}

/** The first token is there, and has no KV yet: the decode engine computes it as the last one of its prompt. */
function decodePart(request: SimulatedRequest, kv: "arrived" | "awaited"): SimulatedRequest {
  return {
    ...request,
    inputTokens: request.inputTokens + 1,
    outputTokens: request.outputTokens - 1,
    kv,
    holdKv: false,
  };
}

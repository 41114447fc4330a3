import type { StatorError } from "../../protocol/errors.ts";

/**
 * The end of the grace time: what still waits or runs then ends with a migratable error, so that its caller goes on
 * elsewhere. A set of its own instead of one shared signal: adding a listener takes as long as there are listeners.
 */
export class HandOver {
  readonly #calls = new Set<AbortController>();
  #reason: StatorError | undefined;

  get begun(): boolean {
    return this.#reason !== undefined;
  }

  begin(reason: StatorError): void {
    this.#reason ??= reason;
    for (const controller of this.#calls) controller.abort(this.#reason);
  }

  /** A signal that aborts with the call's own or when the worker has to go. `close` it when the call is over. */
  join(call: AbortSignal): { readonly signal: AbortSignal; close(): void } {
    const controller = new AbortController();
    const onAbort = (): void => controller.abort(call.reason);
    if (call.aborted) onAbort();
    else if (this.#reason !== undefined) controller.abort(this.#reason);
    call.addEventListener("abort", onAbort);
    this.#calls.add(controller);
    return {
      signal: controller.signal,
      close: () => {
        call.removeEventListener("abort", onAbort);
        this.#calls.delete(controller);
      },
    };
  }
}

import { StatorError } from "../../protocol/errors.ts";
import { NOT_HERE } from "./call-runner.ts";
import type { CallHandler, IncomingCall, RequestPlaneServer } from "./plane.ts";

/**
 * The part that one of several workers of a process has of their common server: the same address and connections, but it
 * drains and ends on its own. Calls name the epoch of the worker that they mean, so the endpoints cannot collide.
 *
 *   client == one connection == server +-- member 1   draining: refuses, its running calls go on
 *                                      +-- member 2   serves
 *                                      +-- member 3   closed: its calls hear that it is not here any more
 *
 * Whoever made the server closes it; that also aborts calls that a closed member has left behind.
 */
export class ServerMember implements RequestPlaneServer {
  readonly #server: RequestPlaneServer;
  #state: "accepting" | "draining" | "closed" = "accepting";
  #activeCalls = 0;

  constructor(server: RequestPlaneServer) {
    this.#server = server;
  }

  get address(): string {
    return this.#server.address;
  }

  get activeCalls(): number {
    return this.#activeCalls;
  }

  listen(): Promise<void> {
    return this.#server.listen();
  }

  handle(endpoint: string, handler: CallHandler): void {
    let serving: CallHandler | undefined = handler;
    this.#server.handle(endpoint, async (call) => {
      if (this.#state === "accepting" && serving !== undefined) return this.#run(serving, call);
      if (this.#state === "closed") serving = undefined; // the server keeps this function, but not the worker behind it
      throw this.#refusal(endpoint);
    });
  }

  stopAccepting(): void {
    if (this.#state === "accepting") this.#state = "draining";
  }

  async close(): Promise<void> {
    this.#state = "closed";
  }

  async #run(handler: CallHandler, call: IncomingCall): Promise<void> {
    this.#activeCalls++;
    try {
      await handler(call);
    } finally {
      this.#activeCalls--;
    }
  }

  #refusal(endpoint: string): StatorError {
    return this.#state === "draining"
      ? new StatorError("draining", "The worker is shutting down.")
      : new StatorError("worker_unreachable", `${JSON.stringify(endpoint)} ${NOT_HERE}.`);
  }
}

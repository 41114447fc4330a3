import { StatorError } from "../../protocol/errors.ts";
import type { Random } from "../../protocol/random.ts";
import { type BookedLoad, LoadBook } from "../load/load-book.ts";
import { leastLoadedPicker, type Picker, powerOfTwoPicker, randomPicker, roundRobinPicker } from "./pickers.ts";

export const routerModes = ["round-robin", "random", "power-of-two", "least-loaded", "direct"] as const;
/** `direct`: every request names its worker. In all other modes a request may do so too. */
export type RouterMode = (typeof routerModes)[number];

export interface RoutingRequest {
  /** Served model: each model has its own turn. */
  readonly model: string;
  readonly promptTokens: number;
  /** The client wants this worker and no other. */
  readonly workerId?: string;
  /** Workers that refused or failed this request before. */
  readonly exclude?: ReadonlySet<string>;
}

export interface Selection {
  readonly workerId: string;
  /** Closed once, after the last byte of the answer. */
  readonly load: BookedLoad;
  /** One line for a person: why this worker. */
  readonly why: string;
}

/** filter -> pick -> book, in one tick. Pure: what it knows comes in through its arguments. */
export class Router {
  readonly mode: RouterMode;
  readonly book: LoadBook = new LoadBook();
  readonly #random: Random;
  readonly #pickers = new Map<string, Picker>();

  constructor(mode: RouterMode, random: Random) {
    this.mode = mode;
    this.#random = random;
  }

  /**
   * `candidates`: ids of the ready workers of the model.
   * Throws `worker_not_found` (named worker unknown), `invalid_header` (direct mode, none named), `not_ready` (no
   * worker left).
   */
  select(candidates: readonly string[], request: RoutingRequest): Selection {
    const { workerId, exclude } = request;
    if (workerId !== undefined) {
      if (!candidates.includes(workerId)) {
        throw new StatorError(
          "worker_not_found",
          `No ready worker ${quote(workerId)} serves ${quote(request.model)}.`,
          {
            param: "x-stator-worker-id",
          },
        );
      }
      if (exclude?.has(workerId)) {
        throw new StatorError("not_ready", `Worker ${quote(workerId)} cannot take the request now.`, {
          retryAfterSeconds: 1,
        });
      }
      return this.#booked(workerId, request, "named by the client");
    }
    if (this.mode === "direct") {
      throw new StatorError("invalid_header", "Router mode direct: name a worker in the header x-stator-worker-id.", {
        param: "x-stator-worker-id",
      });
    }
    const eligible = exclude && exclude.size > 0 ? candidates.filter((id) => !exclude.has(id)) : candidates;
    if (eligible.length === 0) {
      throw new StatorError("not_ready", `No worker of ${quote(request.model)} is ready.`, { retryAfterSeconds: 1 });
    }
    const index = this.#picker(request.model)(eligible, this.book, this.#random);
    return this.#booked(eligible[index]!, request, `${this.mode}, ${eligible.length} eligible`);
  }

  #booked(workerId: string, request: RoutingRequest, why: string): Selection {
    return { workerId, load: this.book.book(workerId, request.promptTokens), why };
  }

  #picker(model: string): Picker {
    let picker = this.#pickers.get(model);
    if (picker === undefined) {
      picker = makePicker(this.mode);
      this.#pickers.set(model, picker);
    }
    return picker;
  }
}

function makePicker(mode: RouterMode): Picker {
  switch (mode) {
    case "round-robin":
      return roundRobinPicker();
    case "random":
      return randomPicker();
    case "power-of-two":
      return powerOfTwoPicker();
    case "least-loaded":
      return leastLoadedPicker();
    case "direct":
      throw new Error("direct mode has no picker");
  }
}

function quote(name: string): string {
  return JSON.stringify(name.slice(0, 200));
}

import type { Logger } from "pino";
import { StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, type EndpointInfo, type InstanceRecord } from "../../protocol/instance.ts";
import type { Discovery, Lease } from "../discovery/discovery.ts";
import type { HealthBoard } from "../health/health-board.ts";
import type { CallHandler, RequestPlaneServer } from "../request-plane/plane.ts";

/** Where a component is in the fleet. */
export interface Place {
  readonly namespace: string;
  readonly name: string;
}

/** The process that a component is served by. */
export interface ServingProcess {
  readonly instanceId: string;
  readonly epoch: string;
  readonly health: HealthBoard;
  readonly parts: { readonly server: RequestPlaneServer; readonly discovery: Discovery; readonly logger?: Logger };
}

export interface ServedEndpoint {
  readonly instanceId: string;
  readonly address: string;
  /** Leaves discovery; running calls go on, new ones are refused. Idempotent. */
  close(): Promise<void>;
  /** @internal What a canary found: an endpoint with a problem is not in discovery until it is well again. */
  report(problem: string | undefined): void;
}

/** What could not be told to discovery is told again after so long. */
const RETRY_MS = 1_000;

interface Served {
  readonly info: EndpointInfo;
  readonly handler: CallHandler;
  problem: string | undefined;
}

/** The record of one component of this process. Its changes reach discovery one after another. */
export class ServedComponent {
  readonly #process: ServingProcess;
  readonly #place: Place;
  readonly #endpoints = new Map<string, Served>();
  readonly #paths = new Set<string>();
  readonly #startedAtMs = Date.now();
  #lease: Lease | undefined;
  #released = false;
  #retry: NodeJS.Timeout | undefined;
  #last: Promise<void> = Promise.resolve();

  constructor(process: ServingProcess, place: Place) {
    this.#process = process;
    this.#place = place;
  }

  async add(info: EndpointInfo, handler: CallHandler): Promise<ServedEndpoint> {
    const { server } = this.#process.parts;
    if (this.#endpoints.has(info.name)) {
      throw new StatorError("invalid_value", `Endpoint ${this.#place.name}/${info.name} is served already.`);
    }
    const entry: Served = { info, handler, problem: undefined };
    const label = `${this.#place.namespace}/${this.#place.name}/${info.name}`;
    const { health } = this.#process;
    this.#endpoints.set(info.name, entry);
    const path = calledEndpoint({ component: this.#place.name, epoch: this.#process.epoch }, info.name);
    if (!this.#paths.has(path)) {
      this.#paths.add(path);
      server.handle(path, async (call) => {
        const current = this.#endpoints.get(info.name);
        if (current === undefined) throw new StatorError("draining", `Endpoint ${path} is not served any more.`);
        await current.handler(call);
      });
    }
    const remove = async (): Promise<void> => {
      if (this.#endpoints.get(info.name) !== entry) return;
      this.#endpoints.delete(info.name);
      health.remove(label);
      await this.#publish();
    };
    const report = (problem: string | undefined): void => {
      health.set(label, problem);
      if ((entry.problem === undefined) === (problem === undefined)) return;
      entry.problem = problem;
      const { logger } = this.#process.parts;
      logger?.warn({ endpoint: label, problem }, problem === undefined ? "endpoint is well again" : "endpoint fails");
      void this.#publishLater();
    };
    try {
      await this.#publish();
      health.set(label, undefined);
    } catch (error) {
      this.#endpoints.delete(info.name);
      throw error;
    }
    return { instanceId: this.#process.instanceId, address: server.address, close: remove, report };
  }

  /** For good. */
  async release(): Promise<void> {
    this.#released = true;
    clearTimeout(this.#retry);
    await this.#inTurn(async () => {
      await this.#lease?.release();
      this.#lease = undefined;
    });
  }

  /** For what nobody waits for: again and again until it succeeds. Never rejects. */
  async #publishLater(): Promise<void> {
    clearTimeout(this.#retry);
    try {
      await this.#publish();
    } catch (err) {
      this.#process.parts.logger?.warn({ err, component: this.#place.name }, "cannot update discovery yet");
      clearTimeout(this.#retry);
      if (!this.#released) this.#retry = setTimeout(() => void this.#publishLater(), RETRY_MS).unref();
    }
  }

  #publish(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#released || ![...this.#endpoints.values()].some(({ problem }) => problem === undefined)) {
        await this.#lease?.release();
        this.#lease = undefined;
      } else if (this.#lease === undefined) {
        this.#lease = await this.#process.parts.discovery.register(this.record());
      } else {
        await this.#lease.update(this.record());
      }
    });
  }

  /** What discovery shows: the endpoints that work. */
  record(): InstanceRecord {
    return {
      namespace: this.#place.namespace,
      component: this.#place.name,
      workerId: this.#process.instanceId,
      epoch: this.#process.epoch,
      address: this.#process.parts.server.address,
      endpoints: [...this.#endpoints.values()].filter((it) => it.problem === undefined).map(({ info }) => info),
      pid: process.pid,
      startedAtMs: this.#startedAtMs,
    };
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.#last.then(work);
    this.#last = done.catch(() => {});
    return done;
  }
}

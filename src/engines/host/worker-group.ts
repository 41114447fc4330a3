import type { Logger } from "pino";
import type { WorkerRecord } from "../../protocol/instance.ts";
import type { HealthBoard, Problem } from "../../runtime/health/health-board.ts";
import { Backoff } from "../../runtime/lifecycle/backoff.ts";
import { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import type { RequestPlaneServer } from "../../runtime/request-plane/plane.ts";
import { ServerMember } from "../../runtime/request-plane/shared-server.ts";
import type { EndpointMetrics } from "../../runtime/telemetry/endpoint-metrics.ts";
import type { WorkerHost, WorkerHostOptions } from "./worker-host.ts";

/** What a worker of a group gets from it. */
export type MemberParts = Required<
  Pick<WorkerHostOptions, "server" | "workerId" | "wheel" | "health" | "onUnhealthy">
> &
  Pick<WorkerHostOptions, "metrics">;

export interface WorkerGroupOptions {
  /** The workers are `<name>-1`, `<name>-2`, ... */
  readonly name: string;
  readonly count: number;
  /** Of all of them. Stays open: it belongs to the caller. */
  readonly server: RequestPlaneServer;
  /** Makes the host of a new engine, not started yet. */
  readonly makeHost: (parts: MemberParts) => Promise<WorkerHost>;
  /** Shows the group as one part. */
  readonly health?: HealthBoard;
  /** Counts the group's calls together, under its name. */
  readonly metrics?: EndpointMetrics;
  readonly logger?: Logger;
}

/** Workers that start at the same time: enough to keep the store busy. */
const LANES = 32;

/**
 * Thousands of workers in one process, each with an engine, an epoch and a record in discovery of its own, behind one
 * address. For engines that need nothing of the machine: simulated ones. A worker whose engine is unhealthy is replaced by
 * a new one under the same id; the others do not notice.
 */
export class WorkerGroup {
  /** By worker id; changes while workers are replaced. */
  readonly hosts: ReadonlyMap<string, WorkerHost>;
  readonly #hosts = new Map<string, WorkerHost>();
  readonly #options: WorkerGroupOptions;
  readonly #wheel = new TimerWheel();
  readonly #problems = new Map<string, string>();
  readonly #replacing = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  #hurried = false;

  constructor(options: WorkerGroupOptions) {
    this.#options = options;
    this.hosts = this.#hosts;
    for (let i = 1; i <= options.count; i++) this.#problems.set(`${options.name}-${i}`, "starting");
    this.#showHealth();
  }

  /** Registers all; rejects when one cannot. Resolves with the record of the first; undefined when stopped meanwhile. */
  async start(): Promise<WorkerRecord | undefined> {
    const ids = [...this.#problems.keys()];
    const waiting = ids.values();
    const lane = async (): Promise<void> => {
      for (const id of waiting) {
        if (this.#stopping.signal.aborted) return;
        await this.#startWorker(id);
      }
    };
    await Promise.all(Array.from({ length: LANES }, lane));
    return this.#hosts.get(ids[0]!)?.record;
  }

  /** Each as {@link WorkerHost.shutdown}. Never rejects. */
  async shutdown(): Promise<void> {
    this.#stopping.abort();
    await Promise.all([...this.#hosts.values()].map((host) => host.shutdown()));
    await Promise.all(this.#replacing);
    this.#wheel.close();
  }

  /** Ends the drain phase of a shutdown now. */
  hurry(): void {
    this.#hurried = true;
    for (const host of this.#hosts.values()) host.hurry();
  }

  async #startWorker(workerId: string): Promise<void> {
    const { server, makeHost, metrics, name } = this.#options;
    const host = await makeHost({
      workerId,
      server: new ServerMember(server),
      wheel: this.#wheel,
      health: { set: (_part, problem) => this.#report(workerId, problem) },
      // Series of each of thousands would be more than a scrape can carry; frontends count by worker.
      ...(metrics && { metrics: { measured: (place, run) => metrics.measured({ ...place, workerId: name }, run) } }),
      onUnhealthy: () => this.#replace(workerId, host),
    });
    this.#hosts.set(workerId, host);
    if (this.#hurried) host.hurry();
    if (!this.#stopping.signal.aborted) await host.start();
    else await host.shutdown();
  }

  #replace(workerId: string, sick: WorkerHost): void {
    const replaced = this.#replaceNow(workerId, sick).finally(() => this.#replacing.delete(replaced));
    this.#replacing.add(replaced);
  }

  async #replaceNow(workerId: string, sick: WorkerHost): Promise<void> {
    sick.hurry();
    await sick.shutdown();
    const backoff = new Backoff({ initialMs: 100, maxMs: 10_000 });
    while (!this.#stopping.signal.aborted) {
      try {
        return await this.#startWorker(workerId);
      } catch (err) {
        this.#options.logger?.error({ err, workerId }, "cannot replace the worker yet");
      }
      await this.#pause(backoff.nextDelayMs());
    }
  }

  /** Until then, or until the group stops. */
  #pause(ms: number): Promise<void> {
    const { signal } = this.#stopping;
    return new Promise((resolve) => {
      const go = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", go);
        resolve();
      };
      const timer = setTimeout(go, ms);
      signal.addEventListener("abort", go);
    });
  }

  #report(workerId: string, problem: Problem): void {
    if (problem === undefined) this.#problems.delete(workerId);
    else this.#problems.set(workerId, problem);
    this.#showHealth();
  }

  #showHealth(): void {
    const { name, count, health } = this.#options;
    const [first] = this.#problems;
    const problem = first && `${this.#problems.size} of ${count} cannot serve, among them ${first[0]}: ${first[1]}`;
    health?.set(`workers ${name}-1 to ${name}-${count}`, problem);
  }
}

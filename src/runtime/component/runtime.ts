import type { Logger } from "pino";
import { Registry } from "prom-client";
import { StatorError } from "../../protocol/errors.ts";
import { DEFAULT_NAMESPACE, type EndpointInfo, type InstanceRecord, isInstanceId } from "../../protocol/instance.ts";
import type { Discovery } from "../discovery/discovery.ts";
import { EnginePages, type Shown } from "../health/engine-pages.ts";
import { HealthBoard } from "../health/health-board.ts";
import type { OperatorServerOptions } from "../health/operator-server.ts";
import { SystemServer } from "../health/system-server.ts";
import { Shutdown, type ShutdownOutcome } from "../lifecycle/shutdown.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import type { CallHandler, RequestPlaneClient, RequestPlaneServer } from "../request-plane/plane.ts";
import { EndpointMetrics } from "../telemetry/endpoint-metrics.ts";
import { Endpoint, type EndpointOptions } from "./endpoint.ts";
import { type Place, ServedComponent, type ServedEndpoint } from "./served-component.ts";

export interface RuntimeOptions {
  /** The runtime closes it. */
  readonly discovery: Discovery;
  /** The runtime closes it. */
  readonly client: RequestPlaneClient;
  /** Not listening yet: the first served endpoint starts it. The runtime closes it. */
  readonly server: RequestPlaneServer;
  /** Name of this process in the fleet. Default: a random one. */
  readonly instanceId?: string;
  /** Default 30 s. */
  readonly drainTimeoutMs?: number;
  /** For the metrics of this process. Default: one of its own. */
  readonly registry?: Registry;
  readonly logger?: Logger;
}

/**
 * A process in the fleet: it serves endpoints and calls those of others.
 *
 *   runtime -> namespace -> component -> endpoint        names only, cheap
 *   endpoint.serve(handler)                              on the request plane, then in discovery
 *   endpoint.client()                                    follows discovery, picks an instance per call
 */
export class Runtime {
  readonly instanceId: string;
  /** New for each runtime. */
  readonly epoch: string = uniqueId();
  readonly health: HealthBoard = new HealthBoard();
  readonly registry: Registry;
  readonly metrics: EndpointMetrics;
  /** @internal */
  readonly parts: RuntimeOptions;
  readonly #components = new Map<string, ServedComponent>();
  readonly #shutdown: Shutdown;
  readonly #idle: (() => void)[] = [];
  readonly #stopping = new AbortController();
  readonly #enginePages = new EnginePages();
  #listening: Promise<void> | undefined;
  #calls = 0;
  #systemServer: SystemServer | undefined;

  constructor(options: RuntimeOptions) {
    this.instanceId = plainName(options.instanceId ?? uniqueId("", 8), "instance");
    this.parts = options;
    this.registry = options.registry ?? new Registry();
    this.metrics = new EndpointMetrics(this.registry);
    this.#shutdown = new Shutdown(
      {
        stopAccepting: () => this.#stopAccepting(),
        drain: (signal) => this.#drain(signal),
        close: () => this.#close(),
      },
      { drainTimeoutMs: options.drainTimeoutMs ?? 30_000 },
    );
  }

  namespace(name: string = DEFAULT_NAMESPACE): Namespace {
    return new Namespace(this, plainName(name, "namespace"));
  }

  /**
   * Opens this process's port for probes and operators (see SystemServer) and gives its number. Default: any free port on
   * loopback.
   */
  async openSystemPort(options: Partial<Omit<OperatorServerOptions, "name">> = {}): Promise<number> {
    this.#assertRunning();
    if (this.#systemServer) throw new StatorError("invalid_value", "This runtime has a system port already.");
    const { health, registry } = this;
    const records = (): readonly (InstanceRecord | undefined)[] => [
      ...this.#enginePages.records,
      ...[...this.#components.values()].map((component) => component.record()),
    ];
    const metadata = () => ({
      instanceId: this.instanceId,
      epoch: this.epoch,
      pid: process.pid,
      components: records().filter((record) => record !== undefined),
    });
    const engineAction = (path: string) => this.#enginePages.find(path);
    const { logger } = this.parts;
    this.#systemServer = new SystemServer(
      { health, registry, metadata, engineAction },
      { host: "127.0.0.1", port: 0, ...(logger === undefined ? {} : { logger }), ...options },
    );
    return this.#systemServer.listen();
  }

  /** Shows an engine's host, or several by worker id, at the system port. */
  show(shown: Shown): void {
    this.#enginePages.show(shown);
  }

  /** Leaves discovery, lets running calls end, closes everything. Never rejects; a second call joins the first. */
  shutdown(): Promise<ShutdownOutcome> {
    return this.#shutdown.run();
  }

  /** Ends the drain phase of a shutdown now. */
  hurry(): void {
    this.#shutdown.hurry();
  }

  /** @internal Puts one endpoint on the plane and into the component's record. */
  async serve(place: Place, info: EndpointInfo, handler: CallHandler): Promise<ServedEndpoint> {
    this.#assertRunning();
    this.#listening ??= this.parts.server.listen();
    await this.#listening;
    this.#assertRunning(); // from here to the component's list it goes on in one piece, or a shutdown would miss it
    const key = `${place.namespace}/${place.name}`;
    let component = this.#components.get(key);
    if (component === undefined) {
      component = new ServedComponent(this, place);
      this.#components.set(key, component);
    }
    const labels = {
      namespace: place.namespace,
      component: place.name,
      endpoint: info.name,
      workerId: this.instanceId,
    };
    const measured = this.metrics.measured(labels, handler);
    return component.add(info, async (call) => {
      this.#calls++;
      try {
        await measured(call);
      } finally {
        this.#calls--;
        if (this.#calls === 0) for (const resolve of this.#idle.splice(0)) resolve();
      }
    });
  }

  #assertRunning(): void {
    if (this.#shutdown.phase !== "running") throw new StatorError("draining", "This runtime is shutting down.");
  }

  /** @internal Aborts when the shutdown begins. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  async #stopAccepting(): Promise<void> {
    this.#stopping.abort();
    this.parts.server.stopAccepting();
    await Promise.all([...this.#components.values()].map((component) => component.release()));
  }

  async #drain(signal: AbortSignal): Promise<void> {
    if (this.#calls === 0) return;
    await new Promise<void>((resolve, reject) => {
      this.#idle.push(resolve);
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }

  /** One after another, the next one also when one fails: a lease that nobody releases would live on. */
  async #close(): Promise<void> {
    const { server, client, discovery } = this.parts;
    const problems: unknown[] = [];
    for (const part of [server, client, discovery, this.#systemServer]) {
      await part?.close().catch((problem: unknown) => problems.push(problem));
    }
    if (problems.length > 0) throw problems[0];
  }
}

export class Namespace {
  readonly #runtime: Runtime;
  readonly name: string;

  constructor(runtime: Runtime, name: string) {
    this.#runtime = runtime;
    this.name = name;
  }

  component(name: string): Component {
    return new Component(this.#runtime, this.name, plainName(name, "component"));
  }
}

export class Component {
  readonly #runtime: Runtime;
  readonly namespace: string;
  readonly name: string;

  constructor(runtime: Runtime, namespace: string, name: string) {
    this.#runtime = runtime;
    this.namespace = namespace;
    this.name = name;
  }

  /** A name; nothing is registered before `serve`. */
  endpoint<Request, Response>(name: string, options: EndpointOptions<Request> = {}): Endpoint<Request, Response> {
    return new Endpoint(this.#runtime, this, plainName(name, "endpoint"), options);
  }
}

function plainName(name: string, what: string): string {
  if (isInstanceId(name)) return name;
  const rule = "up to 128 letters, digits and . _ : -, the first a letter or digit";
  throw new StatorError("invalid_value", `${JSON.stringify(name.slice(0, 128))} cannot name a ${what}: ${rule}.`);
}

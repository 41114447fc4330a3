import type { Logger } from "pino";
import type { AdminAction, Engine } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import {
  calledEndpoint,
  DEFAULT_NAMESPACE,
  type EndpointCodec,
  isInstanceId,
  WORKER_COMPONENT,
  type WorkerRecord,
  workerEndpoints,
} from "../../protocol/instance.ts";
import type { Discovery, Lease } from "../../runtime/discovery/discovery.ts";
import type { HealthBoard } from "../../runtime/health/health-board.ts";
import { Shutdown, type ShutdownOutcome } from "../../runtime/lifecycle/shutdown.ts";
import { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import type { CallHandler, RequestPlaneServer } from "../../runtime/request-plane/plane.ts";
import type { EndpointMetrics } from "../../runtime/telemetry/endpoint-metrics.ts";
import { Admission } from "./admission.ts";
import { EngineWatch } from "./engine-watch.ts";
import { HandOver } from "./hand-over.ts";
import { type GenerateService, serveGenerate } from "./serve-generate.ts";
import { serveEmbed, serveStatus, serveTokenize, serveTokenTable } from "./serve-unary.ts";
import { TurnBudget } from "./turn-budget.ts";
import { unlessAborted } from "./unless-aborted.ts";

export interface WorkerHostOptions {
  /** Default `default`. */
  readonly namespace?: string;
  /** Default `worker`. */
  readonly component?: string;
  /** Of the form that `isInstanceId` takes; else the constructor throws `invalid_value`. */
  readonly workerId: string;
  /** What `generate` advertises; both are understood. Default msgpack. */
  readonly codec?: EndpointCodec;
  /** Default: a new random one. Of the same form. */
  readonly epoch?: string;
  /** The host closes it. */
  readonly engine: Engine;
  /** The host listens and closes it. */
  readonly server: RequestPlaneServer;
  /** Stays open: it belongs to the caller. */
  readonly discovery: Discovery;
  /** Requests that wait when `capacity.maxRunning` run. Default 64. */
  readonly maxQueued?: number;
  /** Default 60 s. */
  readonly queueTimeoutMs?: number;
  /** Default 60 s. */
  readonly stallTimeoutMs?: number;
  /** Default 5 s. */
  readonly healthIntervalMs?: number;
  /** Default 30 s. */
  readonly healthTimeoutMs?: number;
  /** An engine that has been idle for so long proves with one token that it works. Default 10 s. */
  readonly canaryIdleMs?: number;
  /** Default 30 s. */
  readonly drainTimeoutMs?: number;
  /** The engine cannot be trusted any more; the process should end and be started again. Called at most once. */
  readonly onUnhealthy?: (reason: string) => void;
  /** Shows whether this worker can serve. */
  readonly health?: Pick<HealthBoard, "set">;
  readonly metrics?: Pick<EndpointMetrics, "measured">;
  /** Of its deadlines; stays open. Default: one of its own. Workers of one process share one. */
  readonly wheel?: TimerWheel;
  readonly logger?: Logger;
}

/** At the end of the grace time what still runs has so long to end with an error that sends it elsewhere. */
const HAND_OVER_MS = 1_000;

/** One engine as a worker: on the request plane, in discovery, with a queue, looked after, shut down in three phases. */
export class WorkerHost {
  readonly #options: WorkerHostOptions;
  readonly #epoch: string;
  readonly #engine: Engine;
  readonly #server: RequestPlaneServer;
  readonly #wheel: TimerWheel;
  readonly #admission: Admission;
  readonly #watch: EngineWatch;
  readonly #shutdown: Shutdown;
  readonly #handOver = new HandOver();
  readonly #idle: (() => void)[] = [];
  #calls = 0;
  #lease: Lease | undefined;
  #record: WorkerRecord | undefined;

  constructor(options: WorkerHostOptions) {
    const { engine, server, logger } = options;
    for (const id of [options.namespace, options.component, options.workerId, options.epoch]) {
      if (id === undefined || isInstanceId(id)) continue;
      const rule = "up to 128 letters, digits and . _ : -, the first a letter or digit";
      throw new StatorError(
        "invalid_value",
        `${JSON.stringify(id.slice(0, 128))} cannot name a namespace, component, worker or epoch: ${rule}.`,
      );
    }
    this.#options = options;
    this.#epoch = options.epoch ?? uniqueId();
    this.#engine = engine;
    this.#server = server;
    this.#wheel = options.wheel ?? new TimerWheel();
    this.#admission = new Admission(
      {
        maxRunning: engine.describe().capacity.maxRunning,
        maxQueued: options.maxQueued ?? 64,
        queueTimeoutMs: options.queueTimeoutMs ?? 60_000,
      },
      this.#wheel,
    );
    this.#watch = new EngineWatch(engine, this.#wheel, {
      stallTimeoutMs: options.stallTimeoutMs ?? 60_000,
      healthIntervalMs: options.healthIntervalMs ?? 5000,
      healthTimeoutMs: options.healthTimeoutMs ?? 30_000,
      canaryIdleMs: options.canaryIdleMs ?? 10_000,
      onUnhealthy: (reason) => {
        logger?.error({ workerId: options.workerId, reason }, "the engine is not healthy");
        this.#report(reason);
        options.onUnhealthy?.(reason);
      },
    });
    this.#shutdown = new Shutdown(
      {
        stopAccepting: () => this.#stopAccepting(),
        drain: (signal) => this.#drain(signal),
        close: () => this.#close(),
      },
      {
        drainTimeoutMs: options.drainTimeoutMs ?? 30_000,
        onPhase: (phase) => logger?.debug({ workerId: options.workerId, phase }, "worker shutdown"),
      },
    );
    this.#handleCalls();
    this.#report("starting");
  }

  /** What discovery shows; undefined before `start`. */
  get record(): WorkerRecord | undefined {
    return this.#record;
  }

  /** For the `/engine/` pages of the system port: what every engine can tell, and what this one offers. */
  get adminActions(): ReadonlyMap<string, AdminAction> {
    const engine = this.#engine;
    return new Map<string, AdminAction>([
      ["describe", () => engine.describe()],
      ["loads", () => ({ ...engine.loads(), hostRunning: this.running, hostQueued: this.queued })],
      ...(engine.admin ?? []),
    ]);
  }

  get running(): number {
    return this.#admission.running;
  }

  get queued(): number {
    return this.#admission.queued;
  }

  /** Listens and registers. */
  async start(): Promise<WorkerRecord> {
    const { namespace, component, workerId, discovery, codec = "msgpack" } = this.#options;
    const { kind, version, card, capacity } = this.#engine.describe();
    await this.#server.listen();
    this.#record = {
      namespace: namespace ?? DEFAULT_NAMESPACE,
      component: component ?? WORKER_COMPONENT,
      workerId,
      epoch: this.#epoch,
      address: this.#server.address,
      endpoints: Object.values(workerEndpoints).map((name) => ({
        name,
        codec: name === workerEndpoints.generate ? codec : "msgpack",
      })),
      pid: process.pid,
      engine: { kind, version },
      card,
      capacity,
      startedAtMs: Date.now(),
    };
    const lease = await discovery.register(this.#record);
    if (this.#shutdown.phase !== "running") {
      await lease.release();
      throw new StatorError("draining", "The worker was shut down while it started.");
    }
    this.#lease = lease;
    this.#watch.start();
    this.#report(undefined);
    return this.#record;
  }

  /** Unregister and refuse, drain, close. Never rejects; a second call joins the first. */
  shutdown(): Promise<ShutdownOutcome> {
    return this.#shutdown.run();
  }

  /** Ends the drain phase of a shutdown now. */
  hurry(): void {
    this.#shutdown.hurry();
  }

  #handleCalls(): void {
    const engine = this.#engine;
    const admission = this.#admission;
    const service: GenerateService = {
      engine,
      admission,
      turns: new TurnBudget(),
      watch: this.#watch,
      handOver: this.#handOver,
      logger: this.#options.logger,
    };
    this.#handle(workerEndpoints.generate, (call) => serveGenerate(call, service));
    this.#handle(workerEndpoints.tokenize, (call) => serveTokenize(call, engine));
    this.#handle(workerEndpoints.tokenTable, (call) => serveTokenTable(call, engine));
    this.#handle(workerEndpoints.embed, (call) => serveEmbed(call, engine, admission));
    this.#handle(workerEndpoints.status, (call) => serveStatus(call, engine, admission));
  }

  #handle(endpoint: string, handler: CallHandler): void {
    const { namespace = DEFAULT_NAMESPACE, component = WORKER_COMPONENT, workerId, metrics } = this.#options;
    const measured = metrics?.measured({ namespace, component, endpoint, workerId }, handler) ?? handler;
    this.#server.handle(calledEndpoint({ component, epoch: this.#epoch }, endpoint), async (call) => {
      this.#calls++;
      try {
        await measured(call);
      } finally {
        this.#calls--;
        if (this.#calls === 0) for (const resolve of this.#idle.splice(0)) resolve();
      }
    });
  }

  #report(problem: string | undefined): void {
    this.#options.health?.set(`worker ${this.#options.workerId}`, problem);
  }

  async #stopAccepting(): Promise<void> {
    this.#report("draining");
    this.#server.stopAccepting();
    await this.#lease?.release();
  }

  async #drain(signal: AbortSignal): Promise<void> {
    // First the host's own queue: a draining engine would refuse what waits in it.
    await unlessAborted(this.#callsOver(), signal);
    await this.#engine.drain(signal);
  }

  #callsOver(): Promise<void> {
    return this.#calls === 0 ? Promise.resolve() : new Promise((resolve) => this.#idle.push(resolve));
  }

  async #close(): Promise<void> {
    this.#watch.stop();
    this.#handOver.begin(new StatorError("draining", "The worker is shutting down."));
    // An engine that hangs does not hear it; then its streams end with the connection.
    await unlessAborted(this.#callsOver(), AbortSignal.timeout(HAND_OVER_MS)).catch(() => {});
    try {
      await this.#engine.close();
    } finally {
      await this.#server.close();
      if (this.#options.wheel === undefined) this.#wheel.close();
    }
  }
}

import { MockEngine } from "../../engines/mocker/index.ts";
import {
  ActiveFaults,
  checkNames,
  type FaultKind,
  type FaultPoint,
  type FaultScript,
  faultKinds,
  namedWorkers,
} from "../../mocker/index.ts";
import type { Engine } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import { LinkCut } from "../../runtime/request-plane/connection/link-cut.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { readFaultScript } from "./fault-file.ts";

/** Longer delays do not fit into a timer. */
const MAX_TIMER_MS = 60_000;
/** What needs an engine that takes part. */
const ofEngines: ReadonlySet<FaultKind> = new Set(["freeze", "slowDown", "dropEvents"]);

export interface LiveFaultsOptions {
  readonly script: FaultScript;
  /** Ids of the workers of this process. */
  readonly workers: readonly string[];
  /** When the times of the script begin: ms since 1970. */
  readonly sinceMs: number;
  readonly logger: Logger;
  /** Ends this process at once. Default: SIGKILL. */
  readonly kill?: () => void;
}

/**
 * Does to the workers of this process what the configured fault script says about them; undefined without a script.
 * Throws `ConfigError` for what cannot be done here. The clock is that of the fleet: a process that was started again does not
 * repeat what has passed, and goes on with what still holds.
 */
export function configuredFaults(config: Config, workers: readonly string[], logger: Logger): LiveFaults | undefined {
  const script = configuredScript(config);
  if (script === undefined) return undefined;
  checkEngines(config, script, workers);
  for (const point of script.points) {
    const mine = meant(point, workers);
    if (ofEngines.has(point.kind) || mine.length === 0 || mine.length === workers.length) continue;
    throw refused(point, `${mine[0]} shares its process with others, so it can only be meant with all of them`);
  }
  if (workers.every((id) => script.points.every((point) => meant(point, [id]).length === 0))) {
    logger.warn({ workers: workers.slice(0, 20) }, "the fault script says nothing about this worker");
  }
  return new LiveFaults({ script, workers, sinceMs: config.get("faults.since") || Date.now(), logger });
}

/** For `serve`, before anything is started: whether its workers can do what the script says. */
export function checkFleetFaults(config: Config): void {
  const script = configuredScript(config);
  if (script === undefined) return;
  const place = config.get("discovery");
  if (place !== "auto" && place !== "memory" && namedWorkers(script).length > 0) {
    throw new ConfigError(
      `faults.script names workers, but with discovery ${place} those of stator serve have random names; ` +
        "write all, or start each with stator worker --worker-id.",
    );
  }
  const workers = Array.from({ length: config.get("workers") }, (_, i) => `worker-${i + 1}`);
  try {
    checkNames(script, workers);
  } catch (cause) {
    if (cause instanceof StatorError) throw new ConfigError(`faults.script ${cause.message}`, { cause });
    throw cause;
  }
  checkEngines(config, script, workers);
  if (place !== "memory") return;
  const ofProcesses = script.points.find(({ kind }) => !ofEngines.has(kind));
  if (ofProcesses) throw refused(ofProcesses, "with discovery memory the workers have no processes and no links");
}

function configuredScript(config: Config): FaultScript | undefined {
  const path = config.get("faults.script");
  return path === "" ? undefined : readFaultScript(path, "faults.script");
}

function checkEngines(config: Config, { points }: FaultScript, workers: readonly string[]): void {
  const engine = config.get("engine.kind");
  if (engine === "mocker") return;
  const point = points.find((it) => ofEngines.has(it.kind) && meant(it, workers).length > 0);
  if (point) throw refused(point, `only the engine mocker can do that, not ${engine}; kill and cutLink work with any`);
}

function refused({ entry, kind }: FaultPoint, why: string): ConfigError {
  return new ConfigError(`faults.script ${entry}.${kind}: ${why}.`);
}

function meant(point: FaultPoint, workers: readonly string[]): readonly string[] {
  const named = point.workers;
  return named === "all" ? workers : workers.filter((id) => named.includes(id));
}

/** A fault script on a clock. Each fault that begins or ends here is a log line. */
export class LiveFaults {
  /** What the request plane of this process runs over. */
  readonly cut = new LinkCut();
  readonly #points: readonly FaultPoint[];
  readonly #workers: readonly string[];
  readonly #logger: Logger;
  readonly #kill: () => void;
  /** `performance.now()` at the time 0 of the script. */
  readonly #beganAtMs: number;
  readonly #active: ReadonlyMap<string, ActiveFaults>;
  readonly #engines = new Map<string, Engine>();
  #next = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor({ script, workers, sinceMs, logger, kill }: LiveFaultsOptions) {
    this.#points = script.points.filter((point) => meant(point, workers).length > 0);
    this.#workers = workers;
    this.#logger = logger;
    this.#kill = kill ?? (() => process.kill(process.pid, "SIGKILL"));
    this.#beganAtMs = performance.now() - (Date.now() - sinceMs);
    this.#active = new Map(workers.map((id) => [id, new ActiveFaults()]));
  }

  /** Begins. What has passed already does not happen; what still holds does. */
  start(): void {
    const nowMs = this.#nowMs();
    for (let point = this.#due(nowMs); point !== undefined; point = this.#due(nowMs)) {
      for (const id of meant(point, this.#workers)) this.#active.get(id)!.apply(point);
    }
    const first = this.#active.get(this.#workers[0]!)!;
    if (first.has("cutLink")) this.cut.cut();
    for (const [workerId, active] of this.#active) {
      const holding = faultKinds.filter((kind) => kind !== "kill" && active.has(kind));
      if (holding.length > 0) this.#logger.warn({ workerId, faults: holding }, "faults hold since before the start");
    }
    for (const [id, engine] of this.#engines) this.#toEngine(id, engine);
    this.#schedule();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    // Nobody hears the goodbyes of a process that is cut off.
    if (this.cut.isCut) this.cut.mend();
  }

  /** The engine of a worker, perhaps in the place of an earlier one: what holds for the worker holds for it. */
  adopt(workerId: string, engine: Engine): void {
    this.#engines.set(workerId, engine);
    this.#toEngine(workerId, engine);
  }

  #nowMs(): number {
    return performance.now() - this.#beganAtMs;
  }

  /** The next point, when it is due; each once. */
  #due(nowMs: number): FaultPoint | undefined {
    const point = this.#points[this.#next];
    if (point === undefined || point.atMs > nowMs) return undefined;
    this.#next++;
    return point;
  }

  readonly #onTimer = (): void => {
    const nowMs = this.#nowMs();
    for (let point = this.#due(nowMs); point !== undefined; point = this.#due(nowMs)) this.#happen(point);
    this.#schedule();
  };

  #happen(point: FaultPoint): void {
    const { kind, begins, entry, factor } = point;
    const ids = meant(point, this.#workers);
    const fields = {
      fault: entry,
      workers: point.workers === "all" ? "all" : ids,
      ...(kind === "slowDown" && { factor }),
    };
    if (kind === "kill") {
      if (!begins) return; // it is back already, or not yet
      this.#logger.warn(fields, "fault: kill; when the worker is back is up to whoever looks after its process");
      this.#kill();
      return;
    }
    this.#logger.warn(fields, begins ? `fault: ${kind}` : `fault over: ${kind}`);
    for (const id of ids) {
      const active = this.#active.get(id)!;
      if (!active.apply(point)) continue;
      const engine = this.#engines.get(id);
      if (engine !== undefined) this.#toEngine(id, engine);
    }
    if (kind !== "cutLink") return;
    const isCut = this.#active.get(ids[0]!)!.has("cutLink");
    if (isCut && !this.cut.isCut) this.cut.cut();
    if (!isCut && this.cut.isCut) this.cut.mend();
  }

  #toEngine(id: string, engine: Engine): void {
    if (!(engine instanceof MockEngine)) return;
    const active = this.#active.get(id)!;
    engine.faults.freeze(active.has("freeze"));
    engine.faults.slowDown(active.factor);
    engine.faults.dropEvents(active.has("dropEvents"));
  }

  #schedule(): void {
    const point = this.#points[this.#next];
    if (point === undefined) return;
    const delayMs = Math.min(MAX_TIMER_MS, Math.max(0, point.atMs - this.#nowMs()));
    this.#timer = setTimeout(this.#onTimer, delayMs);
    this.#timer.unref();
  }
}

import { engineBlockKeys } from "../mocker/block-keys.ts";
import type { DisaggregatedEngine, SimulatedRequest } from "../mocker/engine.ts";
import type { FaultScript } from "../mocker/fault-script.ts";
import { StatorError } from "../protocol/errors.ts";
import { seededRandom } from "../protocol/random.ts";
import { Router, type RouterMode } from "../router/select/router.ts";
import type { TraceRequest } from "../traces/trace-request.ts";
import { ClientLoop } from "./client-loop.ts";
import { DisaggregatedFleet, type KvTransfer } from "./disaggregated-fleet.ts";
import { EventQueue } from "./event-queue.ts";
import { FaultDriver } from "./fault-driver.ts";
import { AggregatedFleet, type Fleet, type FleetParts } from "./fleet.ts";
import { LostRequests } from "./lost-requests.ts";
import { neededPrefillTokens } from "./needed-prefill.ts";
import { type Outcome, RequestLog } from "./request-log.ts";
import type { Timeline } from "./timeline.ts";
import { WorkerPool, type WorkerRole, type WorkerTally } from "./worker-pool.ts";

/** The default of the key migration.limit. */
const DEFAULT_MIGRATION_LIMIT = 3;

/** Workers that serve whole requests; or prefill and decode apart. At least one of each. */
export type FleetShape =
  | { readonly workers: number }
  | { readonly prefillWorkers: number; readonly decodeWorkers: number; readonly kvTransfer: KvTransfer };

export interface ReplayOptions {
  readonly fleet: FleetShape;
  /** Makes the engine of a worker, which exists from time 0. All have the same block size. */
  readonly engine: (role: WorkerRole, worker: number) => DisaggregatedEngine;
  readonly blockTokens: number;
  /** Any but `direct`. */
  readonly routerMode: RouterMode;
  /** Of the router's choices. */
  readonly seed: number;
  /** Sessions at once; the trace's own times without. */
  readonly concurrency?: number;
  /** Is told the state of the fleet as the time goes by. Changes nothing of what happens. */
  readonly timeline?: Timeline;
  /** What happens to the workers; times from 0. A name that no worker has throws `invalid_value`. Default nothing. */
  readonly faults?: FaultScript;
  /** How often a request may go on elsewhere when its worker is lost. Default 3, as in a live frontend. */
  readonly migrationLimit?: number;
}

export interface ReplayResult {
  readonly log: RequestLog;
  readonly workers: readonly WorkerTally[];
  /** When the last request ended; when some never end, of the last thing that happened. Ms. */
  readonly endMs: number;
  /** Prompt tokens that completed requests would have had to compute even with one endless cache for all workers. */
  readonly neededPrefillTokens: number;
}

/**
 * Runs a workload through simulated engines and the production router, in virtual time. Nothing but the arguments
 * decides what happens: the same ones give the same result, bit by bit.
 */
export function replay(requests: readonly TraceRequest[], options: ReplayOptions): ReplayResult {
  const { blockTokens, concurrency, faults, timeline } = options;
  const fleetSources = sourcesOf(options.fleet);
  const faultSource = requests.length + fleetSources;
  const queue = new EventQueue(faultSource + 1);
  const log = new RequestLog(requests);
  const clients = new ClientLoop(requests, queue, concurrency);
  /** What a worker is asked for: the rest of the answer, behind the tokens that another one gave. */
  const simulated = (id: number): SimulatedRequest => {
    const request = requests[id]!;
    const given = log.given[id]!;
    const { inputTokens, outputTokens } = request;
    const blockKeys = engineBlockKeys(request, blockTokens);
    return { id, inputTokens: inputTokens + given, outputTokens: outputTokens - given, blockKeys };
  };
  let open = requests.length;
  const onEnd = (id: number, outcome: Outcome, endedMs: number): void => {
    open -= 1;
    log.end(id, outcome, endedMs);
    clients.ended(id, endedMs);
  };
  const lost = new LostRequests(log, options.migrationLimit ?? DEFAULT_MIGRATION_LIMIT, onEnd);
  const fleet = makeFleet(options, queue, { log, onEnd, lost, simulated });
  const driver = faults === undefined ? undefined : new FaultDriver(faults, fleet, queue, faultSource);

  let nowMs = 0;
  for (let source = queue.first; source !== undefined && open > 0; source = queue.first) {
    nowMs = queue.timeOf(source);
    timeline?.advance(nowMs, log.gapCount, fleet);
    if (source === faultSource) {
      driver!.step(nowMs);
    } else if (source >= requests.length) {
      fleet.step(source - requests.length, nowMs);
    } else {
      queue.remove(source);
      log.dispatchedMs[source] = nowMs;
      fleet.submit(simulated(source), nowMs);
    }
  }
  timeline?.end(nowMs, log.gapCount, fleet);
  return { log, workers: fleet.tallies, endMs: nowMs, neededPrefillTokens: neededPrefillTokens(log, blockTokens) };
}

function sourcesOf(shape: FleetShape): number {
  return "workers" in shape ? shape.workers : shape.prefillWorkers + shape.decodeWorkers + 1;
}

/** Its sources in the queue follow those of the requests. */
function makeFleet(options: ReplayOptions, queue: EventQueue, parts: FleetParts): Fleet {
  const { fleet: shape, routerMode, seed } = options;
  if (routerMode === "direct") {
    throw new StatorError("invalid_value", "A replay has no clients that name their worker", { param: "routerMode" });
  }
  const first = parts.log.requests.length;
  const pool = (role: WorkerRole, size: number, firstSource: number, poolSeed: number): WorkerPool => {
    const engines = Array.from({ length: size }, (_, worker) => options.engine(role, worker));
    return new WorkerPool(engines, role, new Router(routerMode, seededRandom(poolSeed)), queue, firstSource);
  };
  if ("workers" in shape) return new AggregatedFleet(pool("worker", shape.workers, first, seed), parts);
  const { prefillWorkers, decodeWorkers, kvTransfer } = shape;
  const prefill = pool("prefill", prefillWorkers, first, seed);
  const decode = pool("decode", decodeWorkers, first + prefillWorkers, seed + 1);
  const links = { queue, linksSource: first + prefillWorkers + decodeWorkers };
  return new DisaggregatedFleet(prefill, decode, kvTransfer, links, parts);
}

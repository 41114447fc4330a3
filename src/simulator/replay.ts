import { engineBlockKeys } from "../mocker/block-keys.ts";
import type { DisaggregatedEngine } from "../mocker/engine.ts";
import { StatorError } from "../protocol/errors.ts";
import { seededRandom } from "../protocol/random.ts";
import { Router, type RouterMode } from "../router/select/router.ts";
import type { TraceRequest } from "../traces/trace-request.ts";
import { ClientLoop } from "./client-loop.ts";
import { DisaggregatedFleet, type KvTransfer } from "./disaggregated-fleet.ts";
import { EventQueue } from "./event-queue.ts";
import { AggregatedFleet, type Fleet, type OnEnd } from "./fleet.ts";
import { neededPrefillTokens } from "./needed-prefill.ts";
import { RequestLog } from "./request-log.ts";
import type { Timeline } from "./timeline.ts";
import { WorkerPool, type WorkerRole, type WorkerTally } from "./worker-pool.ts";

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
}

export interface ReplayResult {
  readonly log: RequestLog;
  readonly workers: readonly WorkerTally[];
  /** Prompt tokens that completed requests would have had to compute even with one endless cache for all workers. */
  readonly neededPrefillTokens: number;
}

/**
 * Runs a workload through simulated engines and the production router, in virtual time. Nothing but the arguments
 * decides what happens: the same ones give the same result, bit by bit.
 */
export function replay(requests: readonly TraceRequest[], options: ReplayOptions): ReplayResult {
  const { blockTokens, concurrency, timeline } = options;
  const queue = new EventQueue(requests.length + sourcesOf(options.fleet));
  const log = new RequestLog(requests);
  const clients = new ClientLoop(requests, queue, concurrency);
  const fleet = makeFleet(options, queue, log, (id, outcome, nowMs) => {
    log.end(id, outcome, nowMs);
    clients.ended(id, nowMs);
  });

  let nowMs = 0;
  for (let source = queue.first; source !== undefined; source = queue.first) {
    nowMs = queue.timeOf(source);
    timeline?.advance(nowMs, log.gapCount, fleet);
    if (source >= requests.length) {
      fleet.step(source - requests.length, nowMs);
      continue;
    }
    queue.remove(source);
    const request = requests[source]!;
    const { inputTokens, outputTokens } = request;
    const blockKeys = engineBlockKeys(request, blockTokens);
    log.dispatchedMs[source] = nowMs;
    fleet.submit({ id: source, inputTokens, outputTokens, blockKeys }, nowMs);
  }
  timeline?.end(nowMs, log.gapCount, fleet);
  return { log, workers: fleet.tallies, neededPrefillTokens: neededPrefillTokens(log, blockTokens) };
}

function sourcesOf(shape: FleetShape): number {
  return "workers" in shape ? shape.workers : shape.prefillWorkers + shape.decodeWorkers + 1;
}

/** Its sources in the queue follow those of the requests. */
function makeFleet(options: ReplayOptions, queue: EventQueue, log: RequestLog, onEnd: OnEnd): Fleet {
  const { fleet: shape, routerMode, seed } = options;
  if (routerMode === "direct") {
    throw new StatorError("invalid_value", "A replay has no clients that name their worker", { param: "routerMode" });
  }
  const first = log.requests.length;
  const pool = (role: WorkerRole, size: number, firstSource: number, poolSeed: number): WorkerPool => {
    const engines = Array.from({ length: size }, (_, worker) => options.engine(role, worker));
    return new WorkerPool(engines, role, new Router(routerMode, seededRandom(poolSeed)), queue, firstSource);
  };
  if ("workers" in shape) return new AggregatedFleet(pool("worker", shape.workers, first, seed), log, onEnd);
  const { prefillWorkers, decodeWorkers, kvTransfer } = shape;
  const prefill = pool("prefill", prefillWorkers, first, seed);
  const decode = pool("decode", decodeWorkers, first + prefillWorkers, seed + 1);
  const links = { queue, linksSource: first + prefillWorkers + decodeWorkers };
  return new DisaggregatedFleet(prefill, decode, kvTransfer, links, log, onEnd);
}

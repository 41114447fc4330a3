import { type Distribution, distributionOf } from "../protocol/distribution.ts";
import { hasObjectives, meetsSlo, type Slo } from "../protocol/slo.ts";
import type { ReplayResult } from "./replay.ts";
import { outcomes, type RequestLog } from "./request-log.ts";
import type { WorkerTally } from "./worker-pool.ts";

/** Of a workload and a fleet; the same in every run. Times in virtual ms, unless the name says otherwise. */
export interface ReplayReport {
  readonly num_requests: number;
  readonly completed_requests: number;
  /** Could never run: longer than the whole pool, or the waiting line was full. */
  readonly rejected_requests: number;
  readonly canceled_requests: number;
  /** No worker was there, or theirs was lost once too often. */
  readonly failed_requests: number;
  /** Neither: the fleet came to rest without having answered them. */
  readonly incomplete_requests: number;
  /** Of completed requests. */
  readonly total_input_tokens: number;
  readonly total_output_tokens: number;
  /** From the first request to the end of the last one; when some never end, to the last thing that happened. */
  readonly duration_ms: number;
  readonly request_throughput_rps: number;
  readonly input_throughput_tok_s: number;
  readonly output_throughput_tok_s: number;
  readonly total_throughput_tok_s: number;
  /** Part of the tokens that admissions asked for which was in a cache; of first admissions, which preemption cannot repeat. */
  readonly prefix_cache_reused_ratio: number;
  readonly first_admission_prefix_cache_reused_ratio: number;
  /** Computed though a worker had computed it before: the request went elsewhere, it was evicted, or was preempted. */
  readonly recomputed_prefill_tokens: number;
  readonly preemptions: number;
  /** How often a request went on with another worker, because its own was lost. */
  readonly migrations: number;
  /** While they were there. Workers that serve whole requests count as decode workers. */
  readonly prefill_worker_seconds: number;
  readonly decode_worker_seconds: number;
  readonly prefill_gpus_per_worker: number;
  readonly decode_gpus_per_worker: number;
  readonly gpu_hours: number;
  /** Of completed requests: first token, second token after the first, mean time per token after the first, ... */
  readonly ttft: Distribution | null;
  readonly ttst: Distribution | null;
  readonly tpot: Distribution | null;
  /** Between two tokens of any request, tokens and not requests weighing the same. */
  readonly itl: Distribution | null;
  readonly e2e: Distribution | null;
  /** 1000 / TPOT, in tokens per second. */
  readonly output_token_throughput_per_user: Distribution | null;
  /** Of requests that met every objective. Only with objectives. */
  readonly goodput_rps?: number;
  readonly goodput_output_tok_s?: number;
  /** Part of all requests. */
  readonly goodput_ratio?: number;
  /** Null when none qualified. */
  readonly gpu_seconds_per_qualified_request?: number | null;
  readonly workers: readonly WorkerReport[];
}

export interface WorkerReport {
  readonly worker_id: string;
  readonly requests: number;
  readonly output_tokens: number;
  readonly prefill_tokens: number;
  readonly preemptions: number;
  /** Part of the duration spent in passes. */
  readonly busy_ratio: number;
}

export interface ReportOptions {
  readonly slo: Slo;
  readonly gpusPerWorker: number;
}

export function reportOf(result: ReplayResult, { slo, gpusPerWorker }: ReportOptions): ReplayReport {
  const { log, workers, neededPrefillTokens } = result;
  const { requests, outcome, firstTokenMs, secondTokenMs } = log;
  const completed = idsOf(log, outcomes.completed);
  const sum = (ids: readonly number[], of: (id: number) => number): number => ids.reduce((all, id) => all + of(id), 0);
  const total = (field: Exclude<keyof WorkerTally, "id" | "role" | "deaths">): number =>
    workers.reduce((all, worker) => all + worker[field], 0);

  const { fromMs, durationMs } = spanOf(result);
  const perSecond = (value: number): number => (durationMs === 0 ? 0 : (value * 1000) / durationMs);
  const inputTokens = sum(completed, (id) => requests[id]!.inputTokens);
  const outputTokens = sum(completed, (id) => requests[id]!.outputTokens);
  const longer = completed.filter((id) => requests[id]!.outputTokens > 1);
  const tpots = longer.map((id) => log.tpotMs(id)!);
  const secondsOf = (some: readonly WorkerTally[]): number =>
    (some.length * durationMs - deadMs(some, fromMs, fromMs + durationMs)) / 1000;
  const prefillSeconds = secondsOf(workers.filter(({ role }) => role === "prefill"));
  const decodeSeconds = secondsOf(workers.filter(({ role }) => role !== "prefill"));
  const gpuSeconds = (prefillSeconds + decodeSeconds) * gpusPerWorker;
  const computed = total("prefillTokens");
  const cached = total("cachedTokens");
  const distribution = (ids: readonly number[], of: (id: number) => number) => distributionOf(ids.map(of)) ?? null;

  const qualified = hasObjectives(slo) ? completed.filter((id) => meetsSlo(log.times(id), slo)) : undefined;

  return {
    num_requests: requests.length,
    completed_requests: completed.length,
    rejected_requests: idsOf(log, outcomes.rejected).length,
    canceled_requests: 0,
    failed_requests: idsOf(log, outcomes.failed).length,
    incomplete_requests: outcome.reduce((count, it) => count + (it === outcomes.incomplete ? 1 : 0), 0),
    total_input_tokens: inputTokens,
    total_output_tokens: outputTokens,
    duration_ms: durationMs,
    request_throughput_rps: perSecond(completed.length),
    input_throughput_tok_s: perSecond(inputTokens),
    output_throughput_tok_s: perSecond(outputTokens),
    total_throughput_tok_s: perSecond(inputTokens + outputTokens),
    prefix_cache_reused_ratio: share(cached, cached + computed),
    first_admission_prefix_cache_reused_ratio: share(
      sum(completed, (id) => log.firstCachedTokens[id]!),
      inputTokens,
    ),
    // An engine that does not keep to the order of arrival can do with a few tokens less than needed in that order.
    recomputed_prefill_tokens: Math.max(0, computed - neededPrefillTokens),
    preemptions: total("preemptions"),
    migrations: log.migrations.reduce((all, count) => all + count, 0),
    prefill_worker_seconds: prefillSeconds,
    decode_worker_seconds: decodeSeconds,
    prefill_gpus_per_worker: gpusPerWorker,
    decode_gpus_per_worker: gpusPerWorker,
    gpu_hours: gpuSeconds / 3600,
    ttft: distribution(completed, (id) => log.ttftMs(id)),
    ttst: distribution(longer, (id) => secondTokenMs[id]! - firstTokenMs[id]!),
    tpot: distributionOf(tpots) ?? null,
    itl: distributionOf(log.gaps) ?? null,
    e2e: distribution(completed, (id) => log.e2eMs(id)),
    output_token_throughput_per_user: distributionOf(tpots.filter((ms) => ms > 0).map((ms) => 1000 / ms)) ?? null,
    ...(qualified === undefined
      ? {}
      : {
          goodput_rps: perSecond(qualified.length),
          goodput_output_tok_s: perSecond(sum(qualified, (id) => requests[id]!.outputTokens)),
          goodput_ratio: share(qualified.length, requests.length),
          gpu_seconds_per_qualified_request: qualified.length === 0 ? null : gpuSeconds / qualified.length,
        }),
    workers: workers.map((worker) => ({
      worker_id: worker.id,
      requests: worker.requests,
      output_tokens: worker.outputTokens,
      prefill_tokens: worker.prefillTokens,
      preemptions: worker.preemptions,
      busy_ratio: share(worker.busyMs, durationMs),
    })),
  };
}

function idsOf({ outcome }: RequestLog, wanted: number): number[] {
  const ids: number[] = [];
  for (const [id, it] of outcome.entries()) if (it === wanted) ids.push(id);
  return ids;
}

function spanOf({ log, endMs }: ReplayResult): { readonly fromMs: number; readonly durationMs: number } {
  let from = Number.POSITIVE_INFINITY;
  for (const ms of log.dispatchedMs) if (ms < from) from = ms;
  return endMs > from ? { fromMs: from, durationMs: endMs - from } : { fromMs: 0, durationMs: 0 };
}

/** How long workers did not exist, within a span. */
function deadMs(workers: readonly WorkerTally[], fromMs: number, toMs: number): number {
  let ms = 0;
  for (const death of workers.flatMap(({ deaths }) => deaths)) {
    ms += Math.max(0, Math.min(death.toMs, toMs) - Math.max(death.fromMs, fromMs));
  }
  return ms;
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

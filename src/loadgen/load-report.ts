import { type Distribution, distributionOf } from "../protocol/distribution.ts";
import { distributionTable, factRow, percent } from "../protocol/distribution-table.ts";
import { hasObjectives, meetsSlo, type Slo } from "../protocol/slo.ts";
import type { RequestRecord } from "./openai-client.ts";

/** Field names as in the replay's report; times in ms. */
export interface LoadReport {
  readonly num_requests: number;
  readonly completed_requests: number;
  readonly failed_requests: number;
  /** How many failed with what. */
  readonly errors: Readonly<Record<string, number>>;
  readonly duration_ms: number;
  readonly request_throughput_rps: number;
  readonly input_throughput_tok_s: number;
  readonly output_throughput_tok_s: number;
  readonly total_input_tokens: number;
  readonly total_output_tokens: number;
  readonly prefix_cache_reused_ratio: number;
  readonly ttft: Distribution | null;
  readonly itl: Distribution | null;
  readonly tpot: Distribution | null;
  readonly e2e: Distribution | null;
  /** Requests were sent when they should be: at most one in a hundred over 10 ms late. Else the load was not the one asked for. */
  readonly schedule_kept: boolean;
  readonly schedule_lateness: Distribution | null;
  /** Requests per second, and the share of all, that met every objective. Only with objectives. */
  readonly goodput_rps?: number;
  readonly goodput_ratio?: number;
}

/** A request that is sent later than that is late. */
export const LATE_MS = 10;

export function reportOf(records: readonly RequestRecord[], slo: Slo): LoadReport {
  const good = records.filter(({ error }) => error === undefined);
  const begins = records.map(({ startedAtMs }) => startedAtMs);
  const ends = records.map(({ startedAtMs, e2eMs }) => startedAtMs + e2eMs);
  const durationMs = records.length === 0 ? 0 : max(ends) - min(begins);
  const perSecond = (value: number): number => (durationMs === 0 ? 0 : (value * 1000) / durationMs);
  const sum = (of: (record: RequestRecord) => number): number => good.reduce((total, it) => total + of(it), 0);
  const errors: Record<string, number> = {};
  for (const { error } of records) if (error !== undefined) errors[error] = (errors[error] ?? 0) + 1;
  const inputTokens = sum(({ promptTokens }) => promptTokens);
  const outputTokens = sum(({ completionTokens }) => completionTokens);
  const lateness = distributionOf(records.map(({ lateMs }) => lateMs));
  const met = good.filter((record) => meetsSlo({ ...record, tpotMs: tpotOf(record) }, slo)).length;
  return {
    num_requests: records.length,
    completed_requests: good.length,
    failed_requests: records.length - good.length,
    errors,
    duration_ms: durationMs,
    request_throughput_rps: perSecond(good.length),
    input_throughput_tok_s: perSecond(inputTokens),
    output_throughput_tok_s: perSecond(outputTokens),
    total_input_tokens: inputTokens,
    total_output_tokens: outputTokens,
    prefix_cache_reused_ratio: inputTokens === 0 ? 0 : sum(({ cachedTokens }) => cachedTokens) / inputTokens,
    ttft: distributionOf(good.flatMap(({ ttftMs }) => ttftMs ?? [])) ?? null,
    itl: distributionOf(gaps(good)) ?? null,
    tpot: distributionOf(good.flatMap((record) => tpotOf(record) ?? [])) ?? null,
    e2e: distributionOf(good.map(({ e2eMs }) => e2eMs)) ?? null,
    schedule_kept: lateness === undefined || lateness.p99 <= LATE_MS,
    schedule_lateness: lateness ?? null,
    ...(hasObjectives(slo)
      ? { goodput_rps: perSecond(met), goodput_ratio: records.length === 0 ? 0 : met / records.length }
      : {}),
  };
}

/** Undefined for an answer of one token. */
function tpotOf({ ttftMs, e2eMs, completionTokens }: RequestRecord): number | undefined {
  return ttftMs === undefined || completionTokens < 2 ? undefined : (e2eMs - ttftMs) / (completionTokens - 1);
}

function* gaps(records: readonly RequestRecord[]): Generator<number> {
  for (const { gapsMs } of records) yield* gapsMs;
}

function min(values: readonly number[]): number {
  return values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
}

function max(values: readonly number[]): number {
  return values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
}

/** For a person. */
export function reportText(report: LoadReport): string {
  const lines: string[] = [];
  const row = (name: string, value: string): void => void lines.push(factRow(name, value));
  const { num_requests, completed_requests, failed_requests, duration_ms } = report;
  row("requests", `${completed_requests} of ${num_requests} completed, ${failed_requests} failed`);
  for (const [error, times] of Object.entries(report.errors)) row("", `${times} x ${error}`);
  row("duration", `${(duration_ms / 1000).toFixed(1)} s`);
  row("throughput", `${report.request_throughput_rps.toFixed(2)} requests/s`);
  row("tokens", `${report.input_throughput_tok_s.toFixed(0)} in/s, ${report.output_throughput_tok_s.toFixed(0)} out/s`);
  row("prefix cache", `${percent(report.prefix_cache_reused_ratio)} of the prompt tokens`);
  const { ttft, itl, tpot, e2e } = report;
  lines.push("", ...distributionTable("ms", { ttft, itl, tpot, e2e }));
  if (report.goodput_ratio !== undefined) {
    const { goodput_rps = 0, goodput_ratio } = report;
    lines.push("");
    row("goodput", `${goodput_rps.toFixed(2)} requests/s, ${percent(goodput_ratio)} within the objectives`);
  }
  if (!report.schedule_kept) {
    const p99 = report.schedule_lateness?.p99 ?? 0;
    lines.push(
      "",
      `The schedule was NOT kept: requests were sent up to ${p99.toFixed(0)} ms late (p99). Fewer requests per`,
    );
    lines.push("second, more --concurrency, or a faster machine for the load generator would give the load asked for.");
  }
  return `${lines.join("\n")}\n`;
}

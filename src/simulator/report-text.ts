import { distributionTable, factRow, percent, tableRow } from "../protocol/distribution-table.ts";
import type { ReplayReport } from "./report.ts";

/** For a person. */
export function reportText(report: ReplayReport): string {
  const lines: string[] = [];
  const row = (name: string, value: string): void => void lines.push(factRow(name, value));
  const { num_requests, completed_requests, rejected_requests, failed_requests, incomplete_requests } = report;
  const others = [
    rejected_requests > 0 ? `, ${rejected_requests} rejected` : "",
    failed_requests > 0 ? `, ${failed_requests} failed` : "",
    incomplete_requests > 0 ? `, ${incomplete_requests} incomplete` : "",
  ];
  row("requests", `${completed_requests} of ${num_requests} completed${others.join("")}`);
  row("virtual duration", `${(report.duration_ms / 1000).toFixed(1)} s`);
  row("throughput", `${report.request_throughput_rps.toFixed(2)} requests/s`);
  row("tokens", `${report.input_throughput_tok_s.toFixed(0)} in/s, ${report.output_throughput_tok_s.toFixed(0)} out/s`);
  row("prefix cache", `${percent(report.prefix_cache_reused_ratio)} of the prompt tokens`);
  row("computed again", `${report.recomputed_prefill_tokens} prompt tokens; ${report.preemptions} preemptions`);
  if (report.migrations > 0) row("migrations", `${report.migrations}, from workers that were lost`);
  row("cost", `${report.gpu_hours.toFixed(2)} GPU hours`);
  if (report.goodput_ratio !== undefined) {
    const { goodput_rps = 0, goodput_ratio, gpu_seconds_per_qualified_request: cost } = report;
    row("goodput", `${goodput_rps.toFixed(2)} requests/s, ${percent(goodput_ratio)} within the objectives`);
    if (typeof cost === "number") row("", `${cost.toFixed(2)} GPU seconds for each of them`);
  }
  const { ttft, itl, tpot, e2e } = report;
  lines.push("", ...distributionTable("ms", { ttft, itl, tpot, e2e }));
  lines.push("", `${tableRow("worker", ["busy", "requests", "prefill", "output"])}  tokens`);
  for (const { worker_id, busy_ratio, requests, prefill_tokens, output_tokens } of report.workers) {
    lines.push(tableRow(worker_id, [percent(busy_ratio), ...[requests, prefill_tokens, output_tokens].map(String)]));
  }
  return `${lines.join("\n")}\n`;
}

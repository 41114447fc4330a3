import { percent, shortNumber, tableRow } from "../protocol/distribution-table.ts";
import type { ReplayReport } from "./report.ts";

/** What one of several configurations did. */
export interface NamedReport {
  readonly name: string;
  readonly report: ReplayReport;
}

const header = ["ttft ms", "p99", "itl ms", "p99", "goodput", "req/s", "GPU h", "recomputed"];
const CELL_WIDTH = 12;

/** For a person: a line for each configuration. */
export function comparisonText(reports: readonly NamedReport[]): string {
  const lines = [tableRow("", header, CELL_WIDTH)];
  for (const { name, report } of reports) lines.push(tableRow(name, comparisonCells(report), CELL_WIDTH));
  return `${lines.join("\n")}\n`;
}

function comparisonCells(report: ReplayReport): string[] {
  const { ttft, itl, goodput_ratio, request_throughput_rps, gpu_hours, recomputed_prefill_tokens } = report;
  const ms = (value: number | undefined): string => (value === undefined ? "-" : shortNumber(value));
  return [
    ms(ttft?.mean),
    ms(ttft?.p99),
    ms(itl?.mean),
    ms(itl?.p99),
    goodput_ratio === undefined ? "-" : percent(goodput_ratio),
    request_throughput_rps.toFixed(2),
    gpu_hours.toFixed(2),
    String(recomputed_prefill_tokens),
  ];
}

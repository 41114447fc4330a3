import type { RouterMode } from "../router/select/router.ts";
import type { FleetShape } from "./replay.ts";
import type { ReplayReport } from "./report.ts";

/** One way to serve a workload, to be compared with others. */
export interface Rung {
  readonly name: string;
  readonly fleet: FleetShape;
  readonly routerMode: RouterMode;
}

/** From the simplest fleet upwards; all but the first have the same number of workers. */
export function ladderOf(apart: Extract<FleetShape, { prefillWorkers: number }>): Rung[] {
  const workers = apart.prefillWorkers + apart.decodeWorkers;
  const split = `${apart.prefillWorkers}P ${apart.decodeWorkers}D`;
  return [
    { name: "one worker", fleet: { workers: 1 }, routerMode: "round-robin" },
    { name: `${workers}, round-robin`, fleet: { workers }, routerMode: "round-robin" },
    { name: `${workers}, least-loaded`, fleet: { workers }, routerMode: "least-loaded" },
    { name: `${split}, least-loaded`, fleet: apart, routerMode: "least-loaded" },
  ];
}

export type RungReport = ReplayReport & { readonly rung: string };

/** For a person: a line for each rung. */
export function ladderText(rungs: readonly RungReport[]): string {
  const header = ["ttft ms", "p99", "itl ms", "p99", "goodput", "req/s", "GPU h", "recomputed"];
  const lines = [`${"".padEnd(22)} ${header.map(cell).join("")}`];
  for (const {
    rung,
    ttft,
    itl,
    goodput_ratio,
    request_throughput_rps,
    gpu_hours,
    recomputed_prefill_tokens,
  } of rungs) {
    const cells = [
      ms(ttft?.mean),
      ms(ttft?.p99),
      ms(itl?.mean),
      ms(itl?.p99),
      goodput_ratio === undefined ? "-" : `${(goodput_ratio * 100).toFixed(1)} %`,
      request_throughput_rps.toFixed(2),
      gpu_hours.toFixed(2),
      String(recomputed_prefill_tokens),
    ];
    lines.push(`${rung.padEnd(22)} ${cells.map(cell).join("")}`);
  }
  return `${lines.join("\n")}\n`;
}

function ms(value: number | undefined): string {
  return value === undefined ? "-" : value.toFixed(value < 100 ? 2 : 0);
}

function cell(text: string): string {
  return text.padStart(12);
}

import type { SimulatedEngine, SimulatedRequest } from "./engine.ts";

/** A request with its arrival, for tests. */
export interface Arrival extends Partial<SimulatedRequest> {
  readonly id: number;
  readonly atMs?: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
}

/** One pass as the golden tables show it. */
export interface PassRow {
  readonly endMs: number;
  readonly prefillTokens: number;
  readonly decodeRequests: number;
  /** Who got tokens: ids in the order of the pass. */
  readonly tokens: number[];
  readonly preempted: number[];
  readonly finished: number[];
}

/** More steps than any test needs: a scheduler that makes no progress fails instead of hanging. */
const mostSteps = 100_000;

/** Runs an engine until it is idle and everybody has arrived. Returns its passes; `onStep` sees each step's time. */
export function drive(
  engine: SimulatedEngine,
  arrivals: readonly Arrival[],
  onStep: (nowMs: number, result: ReturnType<SimulatedEngine["step"]>) => void = () => {},
): PassRow[] {
  const rows: PassRow[] = [];
  const queue = [...arrivals].sort((a, b) => (a.atMs ?? 0) - (b.atMs ?? 0));
  let preempted: number[] = [];
  for (let steps = 0; steps < mostSteps; steps++) {
    const next = queue[0];
    const arrivalMs = next === undefined ? Number.POSITIVE_INFINITY : (next.atMs ?? 0);
    const workMs = engine.nextWorkAtMs;
    if (next === undefined && workMs === Number.POSITIVE_INFINITY) return rows;
    if (next !== undefined && (arrivalMs < workMs || (arrivalMs === workMs && !engine.inPass))) {
      queue.shift();
      engine.submit({ blockKeys: [], ...next }, arrivalMs);
      continue;
    }
    const result = engine.step(workMs);
    onStep(workMs, result);
    if (result.preempted.length > 0) preempted = [...result.preempted];
    if (result.metrics.some((metrics) => metrics.wallTimeSeconds > 0)) {
      const scheduled = result.metrics.map((metrics) => metrics.scheduled);
      rows.push({
        endMs: workMs,
        prefillTokens: scheduled.reduce((sum, pass) => sum + pass.prefillTokens, 0),
        decodeRequests: scheduled.reduce((sum, pass) => sum + pass.decodeRequests, 0),
        tokens: [...result.tokenIds.subarray(0, result.tokenRequests)],
        preempted,
        finished: [...result.finished],
      });
      preempted = [];
    }
  }
  throw new Error(`no end after ${mostSteps} steps`);
}

/** A row as one line: `end | prefill tokens + decoding requests | got tokens | preempted | finished`. */
export function line(row: PassRow): string {
  const ids = (list: readonly number[]) => list.join(" ") || "-";
  return `${row.endMs} | ${row.prefillTokens}+${row.decodeRequests} | ${ids(row.tokens)} | ${ids(row.preempted)} | ${ids(row.finished)}`;
}

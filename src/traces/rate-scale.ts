import type { TraceRequest } from "./trace-request.ts";

/** The same workload `factor` times as fast: gaps between arrivals and delays within sessions are divided by it. */
export function* scaleRate(requests: Iterable<TraceRequest>, factor: number): Generator<TraceRequest> {
  for (const request of requests) {
    const arrivalMs = request.arrivalMs / factor;
    yield request.delayMs === undefined
      ? { ...request, arrivalMs }
      : { ...request, arrivalMs, delayMs: request.delayMs / factor };
  }
}

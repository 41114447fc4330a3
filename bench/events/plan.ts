import type { EventOrigin } from "stator/runtime";

export type Mode = "stator" | "raw" | "raw-packed";

export interface PublisherPlan {
  readonly mode: Mode;
  readonly events: number;
  readonly payloadBytes: number;
  readonly eventsPerTick: number;
}

/** How many events may have been sent in all. */
export interface ToPublisher {
  readonly limit: number;
}

export interface FromPublisher {
  readonly address?: string;
  readonly cpuMicros?: number;
}

export function originOf(workerId: string): EventOrigin {
  return { namespace: "bench", component: "worker", workerId, epoch: "e1", topic: "kv-events" };
}

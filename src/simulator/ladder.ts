import type { RouterMode } from "../router/select/router.ts";
import type { FleetShape } from "./replay.ts";

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

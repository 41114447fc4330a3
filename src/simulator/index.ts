export type { KvTransfer } from "./disaggregated-fleet.ts";
export * from "./ladder.ts";
export * from "./replay.ts";
export * from "./report.ts";
export * from "./report-text.ts";
export type { WorkerRole } from "./worker-pool.ts";

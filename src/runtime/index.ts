export * from "./component/index.ts";
export * from "./discovery/index.ts";
export * from "./event-plane/index.ts";
export * from "./health/index.ts";
export * from "./lifecycle/index.ts";
export * from "./request-plane/index.ts";
export * from "./telemetry/log.ts";
export * from "./telemetry/tracing.ts";

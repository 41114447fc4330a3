export { RemoteEngine } from "./remote-engine.ts";
export { type ServedEngine, type ServeEngineOptions, serveEngine } from "./serve-engine.ts";
export type { TokenizeCall, WorkerStatus } from "./serve-unary.ts";
export { type MemberParts, WorkerGroup, type WorkerGroupOptions } from "./worker-group.ts";
export { WorkerHost, type WorkerHostOptions } from "./worker-host.ts";

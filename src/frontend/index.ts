export { createFrontend, type Frontend, type FrontendParts, type FrontendPorts } from "./frontend.ts";
export type { HealthReport } from "./http/health.ts";
export { ModelCatalog, type WorkerView } from "./models/model-catalog.ts";
export * from "./options.ts";

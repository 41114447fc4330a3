export type { AccountedBlock, BlockListener } from "./block-account.ts";
export { createLlamaEngine, type LlamaEngineOptions } from "./create-engine.ts";
export type { LlamaEngine } from "./engine.ts";

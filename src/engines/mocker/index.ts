export { MockEngine, type MockEngineFaults, type MockEngineOptions } from "./mock-engine.ts";

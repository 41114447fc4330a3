export { MockEngine, type MockEngineOptions } from "./mock-engine.ts";

export { EchoEngine, type EchoEngineOptions } from "./echo-engine.ts";

export { TextEngine, type TextEngineOptions } from "./text-engine.ts";

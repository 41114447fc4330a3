export { BytePrompts } from "./byte-prompts.ts";
export { type LoadReport, reportOf, reportText } from "./load-report.ts";
export { type LoadRunOptions, type Progress, runLoad } from "./load-run.ts";
export { OpenAiClient, type RequestRecord, type TargetOptions } from "./openai-client.ts";
export { PromptMaker, type Prompts, sampleOf } from "./prompt-maker.ts";

export * from "./echo/index.ts";
export * from "./host/index.ts";
export * from "./llama/index.ts";
export * from "./mocker/index.ts";
export * from "./text/index.ts";

export * from "./arrivals.ts";
export * from "./azure.ts";
export * from "./generate.ts";
export * from "./mooncake.ts";
export * from "./prefix-tree.ts";
export * from "./rate-scale.ts";
export * from "./trace-request.ts";

export type { Hosted, Shown } from "../health/engine-pages.ts";
export type { CallContext, Endpoint, EndpointHandler, EndpointOptions, ServeOptions } from "./endpoint.ts";
export type { CallOptions, EndpointClient } from "./endpoint-client.ts";
export { type OpenRuntimeOptions, openRuntime } from "./open-runtime.ts";
export { type Component, type Namespace, Runtime, type RuntimeOptions } from "./runtime.ts";
export type { ServedEndpoint } from "./served-component.ts";

export * from "./backoff.ts";
export * from "./shutdown.ts";
export {
  EXIT_CONFIGURATION,
  parentState,
  reportToParent,
  SupervisedProcess,
  type SupervisedProcessOptions,
  type SupervisedState,
} from "./supervised-process.ts";
export * from "./timer-wheel.ts";
export * from "./unique-id.ts";

export { Canary, type CanaryOptions } from "./canary.ts";
export { HealthBoard, type ProcessHealth } from "./health-board.ts";
export {
  type OperatorAnswer,
  type OperatorRequest,
  type OperatorRoute,
  OperatorServer,
  type OperatorServerOptions,
} from "./operator-server.ts";
export { SystemServer, type SystemServerParts } from "./system-server.ts";

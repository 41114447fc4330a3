import type { Router } from "../../router/select/router.ts";
import type { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import type { FrontendMetrics } from "../frontend-metrics.ts";
import type { ModelCatalog } from "../models/model-catalog.ts";
import type { MigrationOptions, TimeoutOptions } from "../options.ts";
import type { FlushQueue } from "./flush-queue.ts";

/** What the pipeline works with; made once per frontend. */
export interface Services {
  readonly catalog: ModelCatalog;
  readonly router: Router;
  readonly plane: RequestPlaneClient;
  readonly wheel: TimerWheel;
  readonly flushQueue: FlushQueue;
  readonly metrics: FrontendMetrics;
  readonly timeouts: TimeoutOptions;
  readonly migration: MigrationOptions;
  readonly logger: Logger;
}

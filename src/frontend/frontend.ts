import type { Registry } from "prom-client";
import type { Router } from "../router/select/router.ts";
import { TimerWheel } from "../runtime/lifecycle/timer-wheel.ts";
import type { RequestPlaneClient } from "../runtime/request-plane/plane.ts";
import type { Logger } from "../runtime/telemetry/log.ts";
import { Admission } from "./admission/admission.ts";
import { registerFleetMetrics } from "./fleet-metrics.ts";
import { FrontendMetrics } from "./frontend-metrics.ts";
import { AdminServer } from "./http/admin-server.ts";
import { type HealthReport, healthReport } from "./http/health.ts";
import { HttpServer } from "./http/server.ts";
import type { ModelCatalog } from "./models/model-catalog.ts";
import type { FrontendOptions } from "./options.ts";
import { FlushQueue } from "./pipeline/flush-queue.ts";
import type { Services } from "./pipeline/services.ts";

/** What a frontend is put together from. It does not own them: whoever made them closes them. */
export interface FrontendParts {
  readonly catalog: ModelCatalog;
  readonly plane: RequestPlaneClient;
  readonly router: Router;
  readonly logger: Logger;
  readonly registry: Registry;
  /** What else keeps the service from being ready, one line each: the owner of the worker processes knows first. */
  readonly reasons?: () => readonly string[];
}

export interface Frontend {
  /** Resolves when the ports are open. `adminPort` only when there is an admin port. */
  listen(): Promise<FrontendPorts>;
  /** What GET /health answers. */
  health(): HealthReport;
  readonly inFlight: number;
  /** Refuses new requests and resolves when the running ones are done (true), or `signal` aborts (false). */
  drain(signal: AbortSignal): Promise<boolean>;
  /** Ends what is left with an error frame and closes the ports. Idempotent. */
  close(): Promise<void>;
}

export interface FrontendPorts {
  readonly port: number;
  readonly adminPort: number | undefined;
}

export function createFrontend(options: FrontendOptions, parts: FrontendParts): Frontend {
  const { catalog, plane, router, logger, registry } = parts;
  const wheel = new TimerWheel();
  const flushQueue = new FlushQueue(plane);
  const admission = new Admission(options.http.maxStreams);
  const metrics = new FrontendMetrics(registry);
  const services: Services = {
    catalog,
    plane,
    router,
    logger,
    wheel,
    flushQueue,
    metrics,
    timeouts: options.timeouts,
    migration: options.migration,
  };
  const health = (): HealthReport => healthReport(catalog, admission, options.expected, parts.reasons?.() ?? []);
  registerFleetMetrics(registry, { catalog, admission, health, expectedWorkers: options.expected.workers });
  const server = new HttpServer(services, admission, registry, options, health);
  const admin = new AdminServer({ catalog, router, health, registry }, options.admin);

  return {
    async listen() {
      const port = await server.listen();
      try {
        return { port, adminPort: await admin.listen() };
      } catch (error) {
        await server.close();
        throw error;
      }
    },
    health,
    get inFlight() {
      return admission.inFlight;
    },
    drain(signal) {
      admission.startDraining();
      server.closeIdle();
      return admission.idle(signal);
    },
    async close() {
      admission.startDraining();
      await Promise.all([server.close(), admin.close()]);
      flushQueue.close();
      wheel.close();
    },
  };
}

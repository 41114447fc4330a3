import type { Registry } from "prom-client";
import type { Router } from "../../router/select/router.ts";
import { type OperatorAnswer, type OperatorRoute, OperatorServer } from "../../runtime/health/operator-server.ts";
import type { ModelCatalog } from "../models/model-catalog.ts";
import type { AdminOptions } from "../options.ts";
import type { HealthReport } from "./health.ts";

export interface AdminParts {
  readonly catalog: ModelCatalog;
  readonly router: Router;
  readonly health: () => HealthReport;
  readonly registry: Registry;
}

/** The operator's port of a frontend. Without authentication: keep it on loopback. */
export class AdminServer {
  readonly #server: OperatorServer | undefined;

  constructor(parts: AdminParts, { host, port }: AdminOptions) {
    const startedAtMs = Date.now();
    const pages = new Map<string, () => OperatorAnswer | Promise<OperatorAnswer>>([
      ["/live", () => ({ status: 200, body: { status: "live" } })],
      ["/metadata", () => ({ status: 200, body: { component: "frontend", pid: process.pid, startedAtMs } })],
      [
        "/metrics",
        async () => ({
          status: 200,
          body: await parts.registry.metrics(),
          contentType: parts.registry.contentType,
        }),
      ],
      ["/workers", () => ({ status: 200, body: { workers: workerList(parts) } })],
      ["/models", () => ({ status: 200, body: { models: modelDetails(parts.catalog) } })],
      [
        "/health",
        () => {
          const report = parts.health();
          return { status: report.status === "ok" ? 200 : 503, body: report };
        },
      ],
    ]);
    const routes = new Map<string, OperatorRoute[]>(
      [...pages].map(([path, handle]) => [path, [{ method: "GET", handle }]]),
    );
    if (port !== undefined) {
      this.#server = new OperatorServer({ host, port, name: "admin port" }, (path) => routes.get(path) ?? []);
    }
  }

  /** Resolves with the port; undefined when there is to be none. */
  async listen(): Promise<number | undefined> {
    return this.#server?.listen();
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.#server?.close();
  }
}

function workerList({ catalog, router }: AdminParts): unknown[] {
  return catalog.workers().map(({ record, state }) => ({
    id: record.workerId,
    model: record.card.name,
    address: record.address,
    epoch: record.epoch,
    pid: record.pid,
    engine: record.engine,
    state,
    inhibited: catalog.inhibitions.reasonOf(record.workerId) ?? null,
    load: { requests: router.book.requests(record.workerId), promptTokens: router.book.promptTokens(record.workerId) },
    capacity: record.capacity,
    startedAtMs: record.startedAtMs,
  }));
}

function modelDetails(catalog: ModelCatalog): unknown[] {
  return catalog.list().map((model) => ({
    name: model.card.name,
    digest: model.digest,
    createdAtSeconds: model.createdAtSeconds,
    workers: model.workerIds(),
    card: model.card,
  }));
}

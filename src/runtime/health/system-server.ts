import type { Registry } from "prom-client";
import type { AdminAction } from "../../protocol/engine.ts";
import type { HealthBoard } from "./health-board.ts";
import { type OperatorRoute, OperatorServer, type OperatorServerOptions } from "./operator-server.ts";

export interface SystemServerParts {
  readonly health: HealthBoard;
  readonly registry: Registry;
  /** What this process is, for people and tools. */
  readonly metadata: () => unknown;
  /** What stands behind a path below `/engine/`, GET and POST; undefined for other paths. */
  readonly engineAction?: (path: string) => AdminAction | undefined;
}

/**
 * The HTTP port that every process has for probes and operators:
 *
 *   /health    200 when all that it serves can serve, else 503 with reasons
 *   /live      200 while the process runs
 *   /metrics   Prometheus
 *   /metadata  what it is
 *   /engine/*  the engine's own pages and actions (see EnginePages)
 */
export class SystemServer {
  readonly #server: OperatorServer;
  readonly #parts: SystemServerParts;

  constructor(parts: SystemServerParts, options: Omit<OperatorServerOptions, "name">) {
    this.#parts = parts;
    const pages = new Map<string, OperatorRoute>([
      ["/health", { method: "GET", open: true, handle: () => this.#health() }],
      ["/live", { method: "GET", open: true, handle: () => ({ status: 200, body: { status: "live" } }) }],
      ["/metrics", { method: "GET", open: true, handle: () => this.#metrics() }],
      ["/metadata", { method: "GET", handle: () => ({ status: 200, body: parts.metadata() }) }],
    ]);
    this.#server = new OperatorServer({ ...options, name: "system port" }, (path) => {
      const page = pages.get(path);
      if (page !== undefined) return [page];
      return this.#engineRoutes(path);
    });
  }

  listen(): Promise<number> {
    return this.#server.listen();
  }

  close(): Promise<void> {
    return this.#server.close();
  }

  #health() {
    const report = this.#parts.health.report();
    return { status: report.status === "ready" ? 200 : 503, body: report };
  }

  async #metrics() {
    const { registry } = this.#parts;
    return { status: 200, body: await registry.metrics(), contentType: registry.contentType };
  }

  #engineRoutes(path: string): OperatorRoute[] {
    const action = this.#parts.engineAction?.(path);
    if (action === undefined) return [];
    return (["GET", "POST"] as const).map((method) => ({
      method,
      handle: async ({ body, signal }) => ({ status: 200, body: (await action(body, signal)) ?? {} }),
    }));
  }
}

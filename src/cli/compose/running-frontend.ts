import { randomInt } from "node:crypto";
import { collectDefaultMetrics, Registry } from "prom-client";
import { createFrontend, type Frontend } from "../../frontend/frontend.ts";
import { ModelCatalog } from "../../frontend/models/model-catalog.ts";
import type { FrontendOptions } from "../../frontend/options.ts";
import { seededRandom } from "../../protocol/random.ts";
import { Router } from "../../router/select/router.ts";
import type { Discovery } from "../../runtime/discovery/discovery.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import type { Config } from "../config/config.ts";
import { configuredFrontend } from "./frontend-options.ts";
import { explainListen } from "./listen-errors.ts";
import { isLoopback } from "./planes.ts";

/** A frontend with all that belongs to it, listening. */
export interface RunningFrontend {
  readonly frontend: Frontend;
  readonly catalog: ModelCatalog;
  readonly url: string;
  readonly adminUrl: string;
  close(): Promise<void>;
}

export async function startFrontend(
  config: Config,
  parts: {
    discovery: Discovery;
    plane: RequestPlaneClient;
    logger: Logger;
    expected: FrontendOptions["expected"];
    reasons?: () => readonly string[];
  },
): Promise<RunningFrontend> {
  const { discovery, plane, logger } = parts;
  const options = configuredFrontend(config, parts.expected);
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const router = new Router(config.get("router.mode"), seededRandom(randomInt(2 ** 32)));
  const { models } = parts.expected;
  const catalog = new ModelCatalog({
    discovery,
    plane,
    logger,
    expected: typeof models === "number" ? [] : models,
    scope: { namespace: config.get("discovery.namespace") },
  });
  const reasons = parts.reasons ?? (() => []);
  const frontend = createFrontend(options, { catalog, plane, router, logger, registry, reasons });
  if (!isLoopback(options.http.host)) {
    const { host } = options.http;
    logger.warn(
      { host },
      "the client port is reachable from other machines and asks for no key: put a gateway before it",
    );
  }
  try {
    const { port, adminPort } = await frontend.listen();
    return {
      frontend,
      catalog,
      url: `http://${urlHost(options.http.host)}:${port}`,
      adminUrl: `http://${urlHost(options.admin.host)}:${adminPort}`,
      async close() {
        await frontend.close();
        await catalog.close();
        await plane.close();
      },
    };
  } catch (error) {
    await frontend.close();
    await catalog.close();
    await plane.close();
    throw explainListen(error, "http.host, http.port, admin.host or admin.port");
  }
}

/** Where a person on this machine can reach the address. */
function urlHost(host: string): string {
  if (host === "0.0.0.0") return "127.0.0.1";
  if (host === "::") return "[::1]";
  return host.includes(":") ? `[${host}]` : host;
}

import { existsSync } from "node:fs";
import { StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, type InstanceRecord, isWorkerRecord } from "../../protocol/instance.ts";
import type { Discovery } from "../../runtime/discovery/discovery.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { NOT_HERE } from "../../runtime/request-plane/call-runner.ts";
import { callUnary } from "../../runtime/request-plane/call-unary.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";
import { configuredDiscovery, discoveryAddress } from "../compose/discovery.ts";
import { configuredLogger } from "../compose/logger.ts";
import { configuredPlaneClient } from "../compose/planes.ts";
import type { Config } from "../config/config.ts";

export interface InstanceFinding {
  readonly instance: string;
  readonly endpoints: readonly string[];
  readonly model: string | null;
  readonly address: string;
  /** `stale`: somebody else answers at the address. */
  readonly state: "reachable" | "stale" | "unreachable";
  /** Why it is not reachable, or how long the answer took. */
  readonly detail: string;
}

export interface FleetFinding {
  readonly ok: boolean;
  /** What is wrong with discovery itself; undefined when it could be read. */
  readonly problem: string | undefined;
  readonly instances: readonly InstanceFinding[];
}

const READ_TIMEOUT_MS = 10_000;
const CALL_TIMEOUT_MS = 3_000;
const AT_ONCE = 16;

/** Reads discovery once and calls everything that it shows. */
export async function inspectFleet(config: Config): Promise<FleetFinding> {
  const address = discoveryAddress(config.get("discovery"));
  // Reading a folder that is not there would make it.
  if (address.startsWith("file:") && !existsSync(address.slice("file:".length))) {
    return { ok: true, problem: undefined, instances: [] };
  }
  const logger = configuredLogger(config, "doctor");
  const discovery = configuredDiscovery(config, logger, "doctor");
  const plane = configuredPlaneClient(config, logger);
  try {
    const { records, problem } = await readOnce(discovery, config.get("discovery.namespace"));
    const queue = [...records];
    const instances: InstanceFinding[] = [];
    const callAll = async (): Promise<void> => {
      for (let record = queue.shift(); record !== undefined; record = queue.shift()) {
        instances.push(await callInstance(plane, record));
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, callAll));
    instances.sort((a, b) => (a.instance < b.instance ? -1 : 1));
    const ok = problem === undefined && instances.every(({ state }) => state === "reachable");
    return { ok, problem, instances };
  } finally {
    await plane.close();
    await discovery.close();
  }
}

/** For a person. */
export function fleetLines({ problem, instances }: FleetFinding, where: string, namespace: string): string {
  const does = (advice: string): string => `               do: ${advice}`;
  if (problem !== undefined) {
    return `FAIL  discovery ${where}: ${problem}\n${does("start the store, or correct --discovery")}\n`;
  }
  const count = instances.length === 1 ? "1 instance" : `${instances.length} instances`;
  const lines = [`ok    discovery ${where}: ${count}`];
  if (instances.length === 0) {
    lines.push(
      `               note: nobody is registered in namespace ${JSON.stringify(namespace)}; workers need the same --discovery and --namespace`,
    );
  }
  for (const { instance, model, address, state, detail } of instances) {
    const mark = state === "reachable" ? "ok   " : "FAIL ";
    lines.push(`${mark} ${instance.padEnd(32)} ${(model ?? "-").padEnd(20)} ${address.padEnd(28)} ${state}: ${detail}`);
  }
  if (instances.some(({ state }) => state === "unreachable")) {
    lines.push(does("give doctor the frontend's own secret, tls.* and --request-plane; else look at the worker's log"));
  }
  return `${lines.join("\n")}\n`;
}

function readOnce(
  discovery: Discovery,
  namespace: string,
): Promise<{ records: readonly InstanceRecord[]; problem: string | undefined }> {
  const records: InstanceRecord[] = [];
  return new Promise((resolve) => {
    const end = (problem: string | undefined): void => {
      clearTimeout(timer);
      watch.close();
      resolve({ records, problem });
    };
    const timer = setTimeout(() => end(`no answer within ${READ_TIMEOUT_MS} ms`), READ_TIMEOUT_MS);
    const watch = discovery.watch(
      { namespace },
      {
        onUpsert: (record) => void records.push(record),
        onRemoved() {},
        onSynced: () => end(undefined),
        onTrouble: (reason) => reason !== undefined && end(reason),
      },
    );
  });
}

/** Any answer of the instance itself will do: an endpoint that nobody has is answered at once, by busy workers too. */
async function callInstance(plane: RequestPlaneClient, record: InstanceRecord): Promise<InstanceFinding> {
  const { namespace, component, workerId, address } = record;
  const found = {
    instance: `${namespace}/${component}/${workerId}`,
    endpoints: record.endpoints.map(({ name }) => name),
    model: isWorkerRecord(record) ? record.card.name : null,
    address,
  };
  const startedAtMs = performance.now();
  const call = {
    endpoint: calledEndpoint(record, "doctor"),
    requestId: uniqueId("doctor-"),
    body: new Uint8Array(0),
    timeoutMs: CALL_TIMEOUT_MS,
  };
  const error = await callUnary(plane, address, call, AbortSignal.timeout(2 * CALL_TIMEOUT_MS)).then(
    () => undefined,
    (thrown: unknown) => (thrown instanceof StatorError ? thrown : new StatorError("internal_error", String(thrown))),
  );
  if (error?.message.includes(NOT_HERE)) return { ...found, state: "stale", detail: error.message };
  // It has answered: that it has no such endpoint, or that it takes no calls any more.
  if (error === undefined || error.code === "protocol_error" || error.code === "draining") {
    const draining = error?.code === "draining" ? ", draining" : "";
    return { ...found, state: "reachable", detail: `${(performance.now() - startedAtMs).toFixed(1)} ms${draining}` };
  }
  return { ...found, state: "unreachable", detail: error.message };
}

import { stat } from "node:fs/promises";
import { createServer } from "node:net";
import { availableParallelism, freemem, totalmem } from "node:os";
import { discoveryAddress } from "../compose/discovery.ts";
import { locateModel } from "../compose/model.ts";
import { threadsPerWorker } from "../compose/worker-fleet.ts";
import type { Config } from "../config/config.ts";
import { fleetLines, inspectFleet } from "./doctor-fleet.ts";

interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** What was found. */
  readonly detail: string;
  /** What to do about it. */
  readonly advice?: string;
}

type Finding = Omit<Check, "name">;

/**
 * Looks at everything that `serve` would need, or with a discovery that others share at all who are registered there.
 * Changes nothing, and says what to do. Exit code 1 when something fails.
 */
export async function doctor(config: Config, options: { json: boolean; version: string }): Promise<void> {
  if (config.isSet("discovery") && !["memory", "auto"].includes(config.get("discovery"))) {
    await doctorOfFleet(config, options);
    return;
  }
  const checks: Check[] = [];
  for (const [name, check] of Object.entries(allChecks)) {
    let finding: Finding;
    try {
      finding = await check(config);
    } catch (error) {
      finding = { ok: false, detail: error instanceof Error ? error.message : String(error) };
    }
    checks.push({ name, ...finding });
  }
  const ok = checks.every((check) => check.ok);
  if (options.json) {
    process.stdout.write(`${JSON.stringify({ version: options.version, ok, checks }, undefined, 2)}\n`);
  } else {
    for (const { name, ok: fine, detail, advice } of checks) {
      process.stdout.write(`${fine ? "ok   " : "FAIL "} ${name.padEnd(8)} ${detail}\n`);
      if (advice !== undefined) process.stdout.write(`               ${fine ? "note" : "do"}: ${advice}\n`);
    }
    process.stdout.write(
      ok ? "\nReady: stator serve\n" : "\nSomething needs attention before stator serve can work.\n",
    );
  }
  process.exitCode = ok ? 0 : 1;
}

async function doctorOfFleet(config: Config, options: { json: boolean; version: string }): Promise<void> {
  const where = discoveryAddress(config.get("discovery"));
  const finding = await inspectFleet(config);
  if (options.json) {
    const { ok, problem, instances } = finding;
    const document = { version: options.version, ok, discovery: where, problem: problem ?? null, instances };
    process.stdout.write(`${JSON.stringify(document, undefined, 2)}\n`);
  } else {
    process.stdout.write(fleetLines(finding, where, config.get("discovery.namespace")));
  }
  process.exitCode = finding.ok ? 0 : 1;
}

const allChecks: Record<string, (config: Config) => Promise<Finding> | Finding> = {
  node: checkNode,
  cores: checkCores,
  engine: checkEngine,
  model: checkModel,
  memory: checkMemory,
  port: (config) => checkPort(config.get("http.host"), config.get("http.port")),
  admin: (config) => checkPort(config.get("admin.host"), config.get("admin.port")),
};

function checkNode(): Finding {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  const detail = `Node ${process.versions.node}`;
  if (major < 20 || (major === 20 && minor < 19))
    return { ok: false, detail, advice: "install Node 20.19 or newer; 24 is recommended" };
  return major < 24 ? { ok: true, detail, advice: "Node 24 streams faster" } : { ok: true, detail };
}

function checkCores(config: Config): Finding {
  const cores = availableParallelism();
  const workers = config.get("workers");
  const detail = `${cores} cores for ${workers} workers with ${threadsPerWorker(config)} threads each`;
  const wanted = workers * threadsPerWorker(config);
  return wanted <= cores || config.get("engine.kind") !== "llama"
    ? { ok: true, detail }
    : {
        ok: true,
        detail,
        advice: `${wanted} threads share ${cores} cores: answers are slower than with fewer workers`,
      };
}

async function checkEngine(config: Config): Promise<Finding> {
  if (config.get("engine.kind") !== "llama") return { ok: true, detail: `${config.get("engine.kind")} is built in` };
  try {
    await import("node-llama-cpp");
    return { ok: true, detail: "node-llama-cpp is installed" };
  } catch {
    return {
      ok: false,
      detail: "node-llama-cpp is not installed",
      advice: "npm install node-llama-cpp@3.21.1, or --engine echo",
    };
  }
}

async function checkModel(config: Config): Promise<Finding> {
  if (config.get("engine.kind") !== "llama") return { ok: true, detail: "none needed" };
  const location = await locateModel(config);
  const advice = "give --model builtin, a path to a GGUF file, or hf:ORG/REPO/FILE.gguf";
  if (location.problem !== undefined) return { ok: false, detail: location.problem, advice };
  return location.path === undefined
    ? { ok: true, detail: `${config.get("model.source")} is not in the cache`, advice: "the first start downloads it" }
    : { ok: true, detail: location.path };
}

async function checkMemory(config: Config): Promise<Finding> {
  const free = freemem();
  const detail = `${gigabytes(free)} of ${gigabytes(totalmem())} free`;
  if (config.get("engine.kind") !== "llama") return { ok: true, detail };
  const { path } = await locateModel(config);
  const modelBytes =
    path === undefined
      ? 0
      : await stat(path).then(
          ({ size }) => size,
          () => 0,
        );
  // Weights are mapped once for all workers of a machine; each worker adds its KV cache and buffers, 0.3 GB at least.
  const needed = modelBytes + config.get("workers") * 300e6;
  return needed < free
    ? { ok: true, detail: `${detail}, about ${gigabytes(needed)} needed` }
    : {
        ok: false,
        detail: `${detail}, about ${gigabytes(needed)} needed`,
        advice: "fewer --workers, or a smaller model",
      };
}

async function checkPort(host: string, port: number): Promise<Finding> {
  if (port === 0) return { ok: true, detail: "any free port" };
  const code = await new Promise<string | undefined>((resolve) => {
    const server = createServer();
    server.once("error", (error: NodeJS.ErrnoException) => resolve(error.code ?? String(error)));
    server.listen(port, host, () => server.close(() => resolve(undefined)));
  });
  if (code === undefined) return { ok: true, detail: `${port} on ${host} is free` };
  return {
    ok: false,
    detail: `${port} on ${host}: ${code}`,
    advice: "another program has it: --port 8001, or --port 0 for any free one",
  };
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../../", import.meta.url)); // .cache/bench/mocker/ -> the project
const cli = join(root, "dist/cli/main.js");
const READY_TIMEOUT_MS = 30_000;

/** Of a report, what both sides have. */
export interface Report {
  readonly total_input_tokens: number;
  readonly total_output_tokens: number;
  readonly completed_requests: number;
  readonly prefix_cache_reused_ratio: number;
  readonly ttft: Distribution;
  readonly itl: Distribution;
  readonly tpot: Distribution;
  readonly e2e: Distribution;
}

interface Distribution {
  readonly mean: number;
  readonly p50: number;
  readonly p99: number;
}

export interface LiveReport extends Report {
  readonly schedule_kept: boolean;
  readonly schedule_lateness: Distribution;
  readonly errors: Readonly<Record<string, number>>;
}

export interface OfflineReport extends Report {
  readonly duration_ms: number;
  readonly workers: readonly { readonly busy_ratio: number }[];
}

/** A `stator` command that prints JSON, to its end. */
function json(args: readonly string[]): unknown {
  const { status, stdout } = spawnSync(process.execPath, [cli, ...args, "--json"], {
    ...{ stdio: ["ignore", "pipe", "inherit"], encoding: "utf8", maxBuffer: 64 * 1024 * 1024 },
  });
  if (status !== 0) throw new Error(`stator ${args.join(" ")} ended with ${status}`);
  return JSON.parse(stdout);
}

export function replay(trace: string, workers: number): OfflineReport {
  return json([
    "replay",
    trace,
    "--workers",
    String(workers),
    "--block-size",
    "64",
    "--blocks",
    "16384",
  ]) as OfflineReport;
}

/** A process of simulated workers at speed-up 1, and a frontend. */
export class LiveFleet {
  readonly #folder = mkdtempSync(join(tmpdir(), "stator-bench-"));
  readonly #children: ChildProcess[] = [];

  async start(workers: number): Promise<string> {
    const common = ["--discovery", `file:${this.#folder}/d`, "--log-level", "warn"];
    const cache = ["--set", "mocker.blockTokens=64", "--set", "mocker.blocks=16384", "--context-length", "262144"];
    const engine = ["--engine", "mocker", "--count", String(workers), "--worker-id", "sim", "--speedup", "1"];
    this.#spawn(["worker", ...engine, ...cache, ...common]);
    const frontend = this.#spawn(["frontend", "--port", "0", "--router-mode", "round-robin", ...common]);
    const url = await addressOf(frontend);
    const deadline = performance.now() + READY_TIMEOUT_MS;
    while ((await readyWorkers(url)) < workers) {
      if (performance.now() > deadline) throw new Error("the fleet did not become ready");
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return url;
  }

  close(): void {
    for (const child of this.#children) child.kill("SIGKILL");
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #spawn(args: readonly string[]): ChildProcess {
    const child = spawn(process.execPath, [cli, ...args], { stdio: ["ignore", "pipe", "inherit"] });
    this.#children.push(child);
    return child;
  }
}

/** The load generator, at the trace's own times. */
export function load(url: string, trace: string, requests: number, seed: number): LiveReport {
  const target = ["--url", url, "--endpoint", "completions", "--byte-tokens"];
  const work = ["--trace", trace, "--requests", String(requests), "--seed", String(seed)];
  return json(["bench", "serve", ...target, ...work]) as LiveReport;
}

function addressOf(frontend: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let output = "";
    frontend.stdout!.on("data", (data: Buffer) => {
      output += data.toString();
      const address = /URL\s+(http:\S+)\/v1/.exec(output)?.[1];
      if (address !== undefined) resolve(address);
    });
    frontend.once("exit", (code) => reject(new Error(`the frontend ended with ${code}`)));
  });
}

async function readyWorkers(url: string): Promise<number> {
  const response = await fetch(`${url}/health`);
  return ((await response.json()) as { readyWorkers: number }).readyWorkers;
}

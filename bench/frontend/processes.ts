import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../../", import.meta.url)); // .cache/bench/frontend/ -> the project
const cli = join(root, "dist/cli/main.js");
const READY_TIMEOUT_MS = 30_000;

export interface ServerUnderTest {
  readonly name: string;
  readonly port: number;
  readonly pid: number;
}

/** The processes of one benchmark; all end with it. */
export class Processes {
  readonly #children: ChildProcess[] = [];
  readonly #folders: string[] = [];

  /** A Stator frontend over one echo worker, in two further processes. */
  async stator(tokenRate: number): Promise<ServerUnderTest> {
    const folder = mkdtempSync(join(tmpdir(), "stator-bench-"));
    this.#folders.push(folder);
    const common = ["--discovery", `file:${folder}`, "--log-level", "warn"];
    this.#spawn([
      cli,
      "worker",
      "--engine",
      "echo",
      "--token-rate",
      String(tokenRate),
      "--worker-id",
      "echo-1",
      ...common,
    ]);
    const child = this.#spawn([cli, "frontend", "--port", "0", ...common]);
    const port = Number(
      /http:\/\/127\.0\.0\.1:(\d+)/.exec(await firstOutput(child, /http:\/\/127\.0\.0\.1:(\d+)/))![1],
    );
    await healthy(port);
    return { name: "stator", port, pid: child.pid! };
  }

  async bare(tokenRate: number): Promise<ServerUnderTest> {
    const child = this.#spawn([fileURLToPath(new URL("./bare-server.js", import.meta.url)), String(tokenRate)]);
    const port = Number(await firstOutput(child, /^\d+\n/));
    return { name: "bare", port, pid: child.pid! };
  }

  /** Runs a script to its end and returns what it printed. */
  run(script: string, argument: string): Promise<string> {
    const child = this.#spawn([fileURLToPath(new URL(script, import.meta.url)), argument]);
    let output = "";
    child.stdout!.on("data", (data: Buffer) => {
      output += data.toString();
    });
    return new Promise((resolve, reject) => {
      child.once("close", (code) => (code === 0 ? resolve(output) : reject(new Error(`${script} ended with ${code}`))));
    });
  }

  close(): void {
    for (const child of this.#children) child.kill("SIGKILL");
    for (const folder of this.#folders) rmSync(folder, { recursive: true, force: true });
  }

  #spawn(args: readonly string[]): ChildProcess {
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
    this.#children.push(child);
    return child;
  }
}

/** CPU seconds that the process has used so far, and its resident memory now. Linux only. */
export function processUsage(pid: number): { cpuSeconds: number; rssBytes: number } {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
  const ticks = Number(fields[11]) + Number(fields[12]);
  return { cpuSeconds: ticks / 100, rssBytes: Number(fields[21]) * 4096 };
}

function firstOutput(child: ChildProcess, pattern: RegExp): Promise<string> {
  return new Promise((resolve, reject) => {
    let output = "";
    const timer = setTimeout(
      () => reject(new Error(`no ${pattern} within ${READY_TIMEOUT_MS} ms: ${output}`)),
      READY_TIMEOUT_MS,
    );
    child.stdout!.on("data", (data: Buffer) => {
      output += data.toString();
      if (!pattern.test(output)) return;
      clearTimeout(timer);
      resolve(output);
    });
    child.once("exit", (code) => reject(new Error(`ended with ${code}: ${output}`)));
  });
}

async function healthy(port: number): Promise<void> {
  const deadline = performance.now() + READY_TIMEOUT_MS;
  while (performance.now() < deadline) {
    const response = await fetch(`http://127.0.0.1:${port}/health`).catch(() => undefined);
    if (response?.status === 200) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("the frontend did not become healthy");
}

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll } from "vitest";

const cli = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const DEFAULT_READY_MS = 60_000;

export interface StartOptions {
  readonly env?: Record<string, string>;
  readonly readyTimeoutMs?: number;
  /** A command that runs the process in other circumstances: `["ip", "netns", "exec", "b"]`. */
  readonly within?: readonly string[];
}

/** A real `stator` process (the built one), with what it printed. */
export class StatorProcess {
  readonly child: ChildProcess;
  stdout = "";
  stderr = "";
  readonly #exit: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;

  constructor(args: readonly string[], options: StartOptions = {}) {
    const [command, ...argv] = [...(options.within ?? []), process.execPath, cli, ...args];
    this.child = spawn(command!, argv, {
      stdio: ["pipe", "pipe", "pipe"],
      env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", ...options.env },
    });
    this.child.stdout!.on("data", (data: Buffer) => {
      this.stdout += data.toString();
    });
    this.child.stderr!.on("data", (data: Buffer) => {
      this.stderr += data.toString();
    });
    this.#exit = new Promise((resolve) => this.child.once("close", (code, signal) => resolve({ code, signal })));
    running.add(this);
    void this.#exit.then(() => running.delete(this));
  }

  get pid(): number {
    return this.child.pid!;
  }

  /** Resolves with the exit status; rejects when it takes longer than `timeoutMs`. */
  exited(timeoutMs = 30_000): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
    return Promise.race([
      this.#exit,
      failAfter(timeoutMs, () => `${this.describe()} did not end within ${timeoutMs} ms`),
    ]);
  }

  signal(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  async stop(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill("SIGTERM");
    try {
      await this.exited(15_000);
    } catch {
      this.child.kill("SIGKILL");
      await this.#exit;
    }
  }

  describe(): string {
    return `stator ${this.child.spawnargs.slice(2).join(" ")}\n--- stdout\n${this.stdout}\n--- stderr\n${this.stderr.slice(-4000)}`;
  }
}

const running = new Set<StatorProcess>();
// Registered in every file that imports this: a test that fails half-way leaves no server behind.
afterAll(async () => {
  await Promise.all([...running].map((stator) => stator.stop()));
});

/** A worker that says that it is ready. */
export class StatorWorker extends StatorProcess {
  address = "";
  systemUrl = "";

  static async start(args: readonly string[], options: StartOptions = {}): Promise<StatorWorker> {
    const worker = new StatorWorker(["worker", "--set", "log.format=json", ...args], options);
    const timeoutMs = options.readyTimeoutMs ?? DEFAULT_READY_MS;
    try {
      await until(
        () => worker.stderr.includes('"worker ready"'),
        timeoutMs,
        () => worker.describe(),
        () => worker.child.exitCode !== null,
      );
    } catch (error) {
      await worker.stop();
      throw error;
    }
    const line = worker.stderr.split("\n").find((it) => it.includes('"worker ready"'))!;
    const { address, systemPort } = JSON.parse(line) as { address: string; systemPort: number };
    worker.address = address;
    worker.systemUrl = `http://127.0.0.1:${systemPort}`;
    return worker;
  }
}

/** A server that answers `/health` with 200. */
export class StatorServer extends StatorProcess {
  url = "";
  adminUrl = "";

  static async serve(args: readonly string[], options: StartOptions = {}): Promise<StatorServer> {
    return StatorServer.#ready(new StatorServer(["serve", "--port", "0", ...args], options), options);
  }

  static async frontend(args: readonly string[], options: StartOptions = {}): Promise<StatorServer> {
    return StatorServer.#ready(new StatorServer(["frontend", "--port", "0", ...args], options), options);
  }

  static async #ready(server: StatorServer, options: StartOptions): Promise<StatorServer> {
    const timeoutMs = options.readyTimeoutMs ?? DEFAULT_READY_MS;
    try {
      await until(
        () => /URL\s+(http:\S+)\/v1/.test(server.stdout),
        timeoutMs,
        () => server.describe(),
        () => server.child.exitCode !== null,
      );
      server.url = /URL\s+(http:\S+)\/v1/.exec(server.stdout)![1]!;
      server.adminUrl = /Admin\s+(http:\S+)\/workers/.exec(server.stdout)?.[1] ?? "";
      await until(
        async () => (await fetch(`${server.url}/health`).catch(() => undefined))?.status === 200,
        timeoutMs,
        () => server.describe(),
      );
      return server;
    } catch (error) {
      await server.stop();
      throw error;
    }
  }

  /** Worker id -> process id, as the admin port shows it. */
  async workers(): Promise<{ id: string; pid: number; state: string }[]> {
    const response = await fetch(`${this.adminUrl}/workers`);
    return ((await response.json()) as { workers: { id: string; pid: number; state: string }[] }).workers;
  }

  /** Worker id -> why it is inhibited, null when it is not. */
  async inhibited(): Promise<Record<string, string | null>> {
    const response = await fetch(`${this.adminUrl}/workers`);
    const { workers } = (await response.json()) as { workers: { id: string; inhibited: string | null }[] };
    return Object.fromEntries(workers.map(({ id, inhibited }) => [id, inhibited]));
  }

  /** Requests in flight, as /metrics has them. */
  async inFlight(): Promise<number> {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    return [...text.matchAll(/^stator_frontend_requests_in_flight\{.*\} (\d+)$/gm)].reduce(
      (sum, [, n]) => sum + Number(n),
      0,
    );
  }

  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    return fetch(this.url + path, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      ...init,
      headers: { "content-type": "application/json", ...(init.headers as Record<string, string> | undefined) },
    });
  }
}

/** Waits for a condition, looking often; the deadline's message says what was missing. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  timeoutMs: number,
  describe: () => string,
  hopeless: () => boolean = () => false,
): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (hopeless() || performance.now() > deadline) throw new Error(`the condition did not come true: ${describe()}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A folder that is gone when the test process ends. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "stator-test-"));
  process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function failAfter(timeoutMs: number, message: () => string): Promise<never> {
  return new Promise((_resolve, reject) => {
    setTimeout(() => reject(new Error(message())), timeoutMs).unref();
  });
}

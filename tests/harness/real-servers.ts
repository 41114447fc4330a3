import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { temporaryFolder, until } from "./stator-process.ts";

const folder = fileURLToPath(new URL("../../.cache/servers", import.meta.url));
const READY_MS = 30_000;

/** A real server on a loopback port of its own, with data in a temporary folder. */
export interface RealServer {
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  signal(name: NodeJS.Signals): void;
  /** SIGKILL, and waits for the end. The data stay. */
  kill(): Promise<void>;
  /** Starts it again after `kill`, on the same port with the same data; `wiped`: with none. */
  restart(options?: { wiped?: boolean }): Promise<void>;
  stop(): Promise<void>;
}

export interface ServerOptions {
  /** Default: a free one. */
  readonly port?: number;
  /** etcd: address to listen on. Default 127.0.0.1. */
  readonly host?: string;
  readonly args?: readonly string[];
}

/** Where a program of `tools/fetch-servers.mjs` is. */
export function serverProgram(file: string): string {
  const path = join(folder, file);
  if (!existsSync(path)) throw new Error(`${path} is missing: run node tools/fetch-servers.mjs`);
  return path;
}

export async function startNats(options: ServerOptions = {}): Promise<RealServer> {
  const port = options.port ?? (await freePort());
  return start(port, `nats://127.0.0.1:${port}`, () => ({
    program: serverProgram("usr/sbin/nats-server"),
    args: ["-a", "127.0.0.1", "-p", String(port), ...(options.args ?? [])],
    ready: /Server is ready/,
  }));
}

export async function startEtcd(options: ServerOptions = {}): Promise<RealServer> {
  const port = options.port ?? (await freePort());
  const peer = await freePort();
  const host = options.host ?? "127.0.0.1";
  const url = `http://${host}:${port}`;
  return start(port, url, (data) => ({
    program: serverProgram("usr/bin/etcd"),
    args: [
      ...["--data-dir", data, "--listen-client-urls", url, "--advertise-client-urls", url],
      ...["--listen-peer-urls", `http://127.0.0.1:${peer}`, "--log-level", "warn"],
      ...["--initial-advertise-peer-urls", `http://127.0.0.1:${peer}`],
      ...["--initial-cluster", `default=http://127.0.0.1:${peer}`],
      ...(options.args ?? []),
    ],
    ready: undefined,
  }));
}

interface Command {
  readonly program: string;
  readonly args: readonly string[];
  /** What it prints when it can be used; undefined: when `/health` says so. */
  readonly ready: RegExp | undefined;
}

async function start(port: number, url: string, command: (data: string) => Command): Promise<RealServer> {
  const data = join(temporaryFolder(), "data");
  let child: ChildProcess | undefined;
  let exited: Promise<void> = Promise.resolve();

  const launch = async (): Promise<void> => {
    mkdirSync(data, { recursive: true, mode: 0o700 });
    const { program, args, ready } = command(data);
    let output = "";
    const started = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
    child = started;
    exited = new Promise((resolve) => started.once("close", () => resolve()));
    for (const stream of [started.stdout, started.stderr]) {
      stream!.on("data", (text: Buffer) => {
        output = (output + text.toString()).slice(-10_000);
      });
    }
    children.add(started);
    void exited.then(() => children.delete(started));
    await until(
      async () => (ready ? ready.test(output) && (await accepts(port)) : await isHealthy(url)),
      READY_MS,
      () => `${program} is not ready: ${output}`,
      // Another process may have the port: only the own child's readiness counts.
      () => started.exitCode !== null,
    );
    if (started.exitCode !== null) throw new Error(`${program} ended: ${output}`);
  };
  const end = async (name: NodeJS.Signals): Promise<void> => {
    child?.kill(name);
    if (name === "SIGTERM") child?.kill("SIGCONT");
    await exited;
  };

  await launch();
  return {
    url,
    port,
    get pid() {
      return child!.pid!;
    },
    signal: (name) => void child?.kill(name),
    kill: () => end("SIGKILL"),
    async restart({ wiped = false } = {}) {
      await end("SIGKILL");
      if (wiped) rmSync(data, { recursive: true, force: true });
      await launch();
    },
    stop: () => end("SIGKILL"),
  };
}

const children = new Set<ChildProcess>();
process.once("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(true));
    socket.once("error", () => resolve(false));
    socket.once("close", () => socket.destroy());
    socket.once("connect", () => socket.destroy());
  });
}

async function isHealthy(url: string): Promise<boolean> {
  try {
    const response = await fetch(`${url}/health`, { signal: AbortSignal.timeout(1_000) });
    return ((await response.json()) as { health?: string }).health === "true";
  } catch {
    return false;
  }
}

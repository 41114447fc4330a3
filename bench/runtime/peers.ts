import { type ChildProcess, fork, spawn, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { processUsage } from "../frontend/processes.js";
import type { Kind, Order, PeerSettings } from "./plan.js";

const root = fileURLToPath(new URL("../../../", import.meta.url)); // .cache/bench/runtime/ -> the project
const REPLY_TIMEOUT_MS = 180_000;

const children: ChildProcess[] = [];
process.once("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});

/** A server and its client, in two processes, and the CPU time of both. */
export class Pair {
  readonly #server: ChildProcess;
  readonly #client: ChildProcess;

  private constructor(server: ChildProcess, client: ChildProcess) {
    this.#server = server;
    this.#client = client;
  }

  static async start(settings: Omit<PeerSettings, "address">): Promise<Pair> {
    const server = peer("./peer-server.js", { ...settings, address: "" });
    const address = await reply<string>(server);
    const client = peer("./peer-client.js", { ...settings, address });
    await reply(client);
    return new Pair(server, client);
  }

  /** Has the client do the order; `cpuSeconds` of both processes meanwhile. */
  async order<T>(order: Order): Promise<{ result: T; cpuSeconds: number }> {
    const before = await this.#usage();
    const result = await ask<T>(this.#client, order);
    return { result, cpuSeconds: (await this.#usage()) - before };
  }

  close(): void {
    this.#server.kill("SIGKILL");
    this.#client.kill("SIGKILL");
  }

  async #usage(): Promise<number> {
    let micros = 0;
    for (const child of [this.#server, this.#client]) {
      const { user, system } = await ask<NodeJS.CpuUsage>(child, { what: "usage" });
      micros += user + system;
    }
    return micros / 1e6;
  }
}

/** A NATS server of the benchmark's own. */
export async function startNats(): Promise<{ url: string; cpuSeconds(): number }> {
  const program = join(root, ".cache/servers/usr/sbin/nats-server");
  if (!existsSync(program)) spawnSync(process.execPath, [join(root, "tools/fetch-servers.mjs")], { stdio: "inherit" });
  const port = await freePort();
  const child = spawn(program, ["-a", "127.0.0.1", "-p", String(port)], { stdio: ["ignore", "ignore", "pipe"] });
  children.push(child);
  await new Promise<void>((resolve, reject) => {
    let output = "";
    child.stderr!.on("data", (text: Buffer) => {
      output += text.toString();
      if (output.includes("Server is ready")) resolve();
    });
    child.once("error", reject);
    child.once("exit", () => reject(new Error(`nats-server ended: ${output}`)));
  });
  return { url: `nats://127.0.0.1:${port}`, cpuSeconds: () => processUsage(child.pid!).cpuSeconds };
}

/** Which kinds have a broker between the two. */
export function usesNats(kind: Kind): boolean {
  return kind === "nats" || kind === "nats-request";
}

function peer(script: string, settings: PeerSettings): ChildProcess {
  const child = fork(fileURLToPath(new URL(script, import.meta.url)), [JSON.stringify(settings)]);
  children.push(child);
  return child;
}

function ask<T>(child: ChildProcess, order: Order): Promise<T> {
  const answer = reply<T>(child);
  child.send(order);
  return answer;
}

function reply<T>(child: ChildProcess): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("a peer does not answer")), REPLY_TIMEOUT_MS);
    const onExit = (code: number | null): void => reject(new Error(`a peer ended with ${code}`));
    child.once("exit", onExit);
    child.once("message", (message) => {
      clearTimeout(timer);
      child.off("exit", onExit);
      resolve(message as T);
    });
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

import { readFileSync } from "node:fs";
import { expect } from "vitest";
import { readStream } from "./sse.ts";
import { StatorServer, StatorWorker, until } from "./stator-process.ts";

export interface ManyWorkersOptions {
  readonly count: number;
  readonly discovery: string;
  /** Default 5. */
  readonly speedup?: number;
  /** For frontend and workers: the planes. */
  readonly args?: readonly string[];
}

/** One process of simulated workers, and a frontend that has found them. */
export class ManyWorkers {
  readonly worker: StatorWorker;
  readonly frontend: StatorServer;
  readonly count: number;

  private constructor(worker: StatorWorker, frontend: StatorServer, count: number) {
    this.worker = worker;
    this.frontend = frontend;
    this.count = count;
  }

  static async start({ count, discovery, speedup = 5, args = [] }: ManyWorkersOptions): Promise<ManyWorkers> {
    const engine = ["--engine", "mocker", "--speedup", String(speedup), "--worker-id", "sim", "--count", String(count)];
    const worker = await StatorWorker.start([...engine, "--discovery", discovery, ...args]);
    const frontend = await StatorServer.frontend(["--discovery", discovery, ...args]);
    const many = new ManyWorkers(worker, frontend, count);
    await many.frontendSees(count);
    return many;
  }

  async frontendSees(count: number): Promise<void> {
    const ready = async () => {
      const health = (await (await fetch(`${this.frontend.url}/health`)).json()) as { readyWorkers: number };
      return health.readyWorkers;
    };
    await until(
      async () => (await ready()) === count,
      120_000,
      () => `not ${count} workers: ${this.frontend.describe()}\n${this.worker.describe()}`,
    );
  }

  /** So many requests at once by round-robin: every one is answered completely, each by another worker. */
  async expectStreams(requests: number): Promise<void> {
    const ask = async (i: number) => {
      const prompt = `question number ${i}`;
      const body = { model: "stator-mocker", prompt, max_tokens: 20, ignore_eos: true, stream: true };
      const response = await this.frontend.post("/v1/completions", {
        ...body,
        stream_options: { include_usage: true },
      });
      const { chunks, done, error } = await readStream(response);
      const { completion_tokens, prompt_tokens } = chunks.at(-1)!.usage!;
      expect({ status: response.status, done, error, completion_tokens, prompt_tokens }).toEqual({
        ...{ status: 200, done: true, error: undefined, completion_tokens: 20, prompt_tokens: prompt.length },
      });
      return response.headers.get("x-stator-worker-id");
    };
    const ids = await Promise.all(Array.from({ length: requests }, (_, i) => ask(i)));
    expect(new Set(ids).size).toBe(Math.min(requests, this.count));
  }

  /** At the system port of the process. */
  async system(path: string, body?: object): Promise<{ status: number; body: unknown }> {
    const post = body && {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    };
    const response = await fetch(this.worker.systemUrl + path, post);
    return { status: response.status, body: await response.json() };
  }

  /** All leave, and the process ends well. */
  async expectEnd(): Promise<void> {
    this.worker.signal("SIGTERM");
    expect((await this.worker.exited(60_000)).code).toBe(0);
    await this.frontendSees(0);
  }

  async stop(): Promise<void> {
    await Promise.all([this.worker.stop(), this.frontend.stop()]);
  }
}

/** Resident memory in KiB; Linux only. */
export function residentKib({ pid }: { readonly pid: number }): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]);
}

/** CPU time in ms that the process has used; Linux only. */
export function cpuMs({ pid }: { readonly pid: number }): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

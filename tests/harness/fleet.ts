import { expect } from "vitest";
import { readStream } from "./sse.ts";
import { type StartOptions, StatorServer, StatorWorker, until } from "./stator-process.ts";

const chat = "/v1/chat/completions";

export interface FleetOptions {
  /** `file:DIR` or `etcd://...`. */
  readonly discovery: string;
  /** Default 4. */
  readonly workers?: number;
  /** Tokens per second and stream. Default 50. */
  readonly tokenRate?: number;
  /** For the frontend and the workers. */
  readonly args?: readonly string[];
  readonly workerArgs?: readonly string[];
  readonly frontendArgs?: readonly string[];
  readonly options?: StartOptions;
}

/** How one stream ended. */
export interface Outcome {
  readonly status: number;
  /** Of the error frame or body. */
  readonly code: string | undefined;
  readonly done: boolean;
  readonly workerId: string | null;
  readonly content: string;
  readonly text: string;
  readonly tokens: number;
  readonly durationMs: number;
}

/** Streams that run. */
export interface RunningStreams {
  readonly outcomes: Promise<readonly Outcome[]>;
  /** Resolves when every stream has had so many chunks, or has ended. */
  progressed(chunks: number): Promise<void>;
}

/** A frontend and echo workers as processes of their own. */
export class Fleet {
  readonly frontend: StatorServer;
  readonly workers = new Map<string, StatorWorker>();
  readonly #options: FleetOptions;

  private constructor(frontend: StatorServer, options: FleetOptions) {
    this.frontend = frontend;
    this.#options = options;
  }

  static async start(options: FleetOptions): Promise<Fleet> {
    const ids = Array.from({ length: options.workers ?? 4 }, (_, i) => `w${i + 1}`);
    const workers = await Promise.all(ids.map((id) => Fleet.#worker(id, options)));
    const { discovery, args = [], frontendArgs = [] } = options;
    const frontend = await StatorServer.frontend(["--discovery", discovery, ...args, ...frontendArgs], options.options);
    const fleet = new Fleet(frontend, options);
    for (const [i, worker] of workers.entries()) fleet.workers.set(ids[i]!, worker);
    if (ids.length > 0) await fleet.ready(ids.length);
    return fleet;
  }

  /** Of processes that somebody else has started. `add` is not for these. */
  static of(frontend: StatorServer, workers: ReadonlyMap<string, StatorWorker>): Fleet {
    const fleet = new Fleet(frontend, { discovery: "" });
    for (const [id, worker] of workers) fleet.workers.set(id, worker);
    return fleet;
  }

  static #worker(id: string, options: FleetOptions, more: readonly string[] = []): Promise<StatorWorker> {
    const { discovery, tokenRate = 50, args = [], workerArgs = [] } = options;
    return StatorWorker.start(
      [
        ...["--engine", "echo", "--token-rate", String(tokenRate), "--worker-id", id, "--discovery", discovery],
        ...[...args, ...workerArgs, ...more],
      ],
      options.options,
    );
  }

  /** Starts a worker, perhaps under the id of one that is gone. */
  async add(id: string, args: readonly string[] = []): Promise<StatorWorker> {
    const worker = await Fleet.#worker(id, this.#options, args);
    this.workers.set(id, worker);
    return worker;
  }

  /** Until the frontend has exactly so many ready workers, none of them inhibited. */
  async ready(count: number, timeoutMs = 60_000): Promise<void> {
    await until(
      async () => {
        const metrics = await this.metrics();
        const inhibited = /^stator_frontend_workers_inhibited (\d+)$/m.exec(metrics)?.[1];
        const ready = [...metrics.matchAll(/^stator_frontend_workers\{.*state="ready"\} (\d+)$/gm)];
        return inhibited === "0" && ready.reduce((sum, [, n]) => sum + Number(n), 0) === count;
      },
      timeoutMs,
      () => `not ${count} ready workers: ${this.frontend.describe()}`,
    );
  }

  async metrics(): Promise<string> {
    return (await fetch(`${this.frontend.url}/metrics`)).text();
  }

  streams(count: number, tokens: number, headers: Record<string, string> = {}): RunningStreams {
    const chunks = new Array<number>(count).fill(0);
    const all = chunks.map((_, i) => this.#stream(i, tokens, headers, () => chunks[i]!++));
    for (const [i, stream] of all.entries()) {
      void stream.then(() => {
        chunks[i] = Number.POSITIVE_INFINITY;
      });
    }
    return {
      outcomes: Promise.all(all),
      progressed: (wanted) =>
        until(
          () => chunks.every((n) => n >= wanted),
          60_000,
          () => `streams stand still: ${chunks.join(" ")}\n${this.frontend.describe()}`,
        ),
    };
  }

  /** Never rejects but for a frontend that is gone. */
  async #stream(i: number, tokens: number, headers: Record<string, string>, onChunk: () => void): Promise<Outcome> {
    const startedAtMs = performance.now();
    const content = `stream ${i} ${"äö€ ".repeat(i % 5)}`;
    const response = await this.frontend.post(
      chat,
      {
        model: "stator-echo",
        messages: [{ role: "user", content }],
        max_tokens: tokens,
        stream: true,
        stream_options: { include_usage: true },
      },
      { headers },
    );
    const workerId = response.headers.get("x-stator-worker-id");
    const common = { status: response.status, workerId, content };
    if (response.status !== 200) {
      const { error } = (await response.json()) as { error: { code: string } };
      return {
        ...common,
        code: error.code,
        done: true,
        text: "",
        tokens: 0,
        durationMs: performance.now() - startedAtMs,
      };
    }
    const { text, error, done, chunks } = await readStream(response, onChunk);
    const usage = chunks.at(-1)?.usage?.completion_tokens ?? 0;
    return { ...common, code: error?.code, done, text, tokens: usage, durationMs: performance.now() - startedAtMs };
  }

  async stop(): Promise<void> {
    await Promise.all([...this.workers.values()].map((worker) => worker.stop()));
    await this.frontend.stop();
  }
}

/** Every stream is complete, with its own text, and its usage is right. */
export function expectPerfect(outcomes: readonly Outcome[], tokens: number): void {
  for (const { status, code, done, content, text, tokens: counted } of outcomes) {
    expect({ status, code, done, counted }).toEqual({ status: 200, code: undefined, done: true, counted: tokens });
    const prompt = Buffer.from(`user: ${content}\nassistant: `);
    const whole = Buffer.concat(Array.from({ length: Math.ceil(tokens / prompt.length) }, () => prompt));
    expect(text).toBe(whole.subarray(0, tokens).toString());
  }
}

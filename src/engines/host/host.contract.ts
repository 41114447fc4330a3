import type { Engine, EngineDescriptor, EngineHealth, EngineLoads } from "../../protocol/engine.ts";
import type { GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { MemoryDiscovery } from "../../runtime/discovery/memory.ts";
import {
  MemoryNetwork,
  MemoryRequestPlaneClient,
  MemoryRequestPlaneServer,
} from "../../runtime/request-plane/memory.ts";
import type { RequestPlaneClient, RequestPlaneServer } from "../../runtime/request-plane/plane.ts";
import { TcpRequestPlaneClient } from "../../runtime/request-plane/tcp/client.ts";
import { TcpRequestPlaneServer } from "../../runtime/request-plane/tcp/server.ts";
import { EchoEngine } from "../echo/echo-engine.ts";
import { RemoteEngine } from "./remote-engine.ts";
import { WorkerHost, type WorkerHostOptions } from "./worker-host.ts";

/** What the tests of this folder share: hosts on both planes, and engines that misbehave on purpose. */
export type PlaneKind = "memory" | "tcp";

const network = new MemoryNetwork();
let names = 0;

export interface Rig {
  readonly host: WorkerHost;
  readonly server: RequestPlaneServer;
  readonly client: RequestPlaneClient;
  readonly discovery: MemoryDiscovery;
  readonly engine: RemoteEngine;
  close(): Promise<void>;
}

/** A started host around `engine`, and the same engine as it looks from the other end of the plane. */
export async function rig(plane: PlaneKind, engine: Engine, options: Partial<WorkerHostOptions> = {}): Promise<Rig> {
  const server =
    plane === "tcp" ? new TcpRequestPlaneServer() : new MemoryRequestPlaneServer(`host-${names++}`, { network });
  const client = plane === "tcp" ? new TcpRequestPlaneClient() : new MemoryRequestPlaneClient({ network });
  const discovery = new MemoryDiscovery();
  const host = new WorkerHost({ workerId: "w1", epoch: "e1", engine, server, discovery, ...options });
  const record = await host.start();
  const remote = await RemoteEngine.connect(client, record, AbortSignal.timeout(10_000));
  const close = async (): Promise<void> => {
    host.hurry();
    await client.close();
    await host.shutdown();
    await discovery.close();
  };
  return { host, server, client, discovery, engine: remote, close };
}

/** A remote engine that takes its whole rig along when it is closed. */
export async function remoteEngine(
  plane: PlaneKind,
  engine: Engine,
  options: Partial<WorkerHostOptions> = {},
): Promise<Engine> {
  const made = await rig(plane, engine, { drainTimeoutMs: 0, ...options });
  const remote = made.engine;
  return {
    ...(remote.tokenizing ? { tokenizing: remote.tokenizing } : {}),
    ...(remote.embedding ? { embedding: remote.embedding } : {}),
    describe: () => remote.describe(),
    health: (probe, signal) => remote.health(probe, signal),
    generate: (request, signal) => remote.generate(request, signal),
    // At rest means at rest on both ends.
    loads: () => {
      const inside = engine.loads();
      return { ...inside, running: Math.max(inside.running, remote.loads().running, made.host.running) };
    },
    drain: (signal) => remote.drain(signal),
    close: async () => {
      await remote.close();
      await made.close();
    },
  };
}

/** An engine whose `generate` is given by the test. */
export class ScriptedEngine implements Engine {
  readonly #descriptor: EngineDescriptor;
  readonly #script: (request: GenerateRequest, signal: AbortSignal) => AsyncIterable<TokenDelta>;
  healthState: EngineHealth | Promise<EngineHealth> = { state: "ready" };
  closed = 0;

  constructor(script: (request: GenerateRequest, signal: AbortSignal) => AsyncIterable<TokenDelta>, maxRunning = 4) {
    this.#script = script;
    this.#descriptor = new EchoEngine({ maxRunning }).describe();
  }

  describe(): EngineDescriptor {
    return this.#descriptor;
  }

  async health(): Promise<EngineHealth> {
    return await this.healthState;
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta> {
    return this.#script(request, signal);
  }

  loads(): EngineLoads {
    return { running: 0, waiting: 0 };
  }

  async drain(): Promise<void> {}

  async close(): Promise<void> {
    this.closed++;
  }
}

export function requestOf(requestId: string, maxTokens = 8, prompt = "abc"): GenerateRequest {
  return {
    requestId,
    model: "echo",
    tokens: Uint32Array.from(Buffer.from(prompt)),
    sampling: {
      temperature: 0,
      topP: 1,
      topK: 0,
      minP: 0,
      presencePenalty: 0,
      frequencyPenalty: 0,
      repetitionPenalty: 1,
    },
    stop: { maxTokens, minTokens: 0, stopTokenIds: [], ignoreEos: true },
    timeoutMs: 20_000,
  };
}

export function finishOf(completionTokens: number, reason: "stop" | "length" | "abort" = "length"): TokenDelta {
  return {
    tokens: new Uint32Array(0),
    finish: { reason, usage: { promptTokens: 3, completionTokens, cachedTokens: 0 } },
  };
}

/** The text of a whole answer; throws what the stream threw. */
export async function textOf(
  engine: Engine,
  request: GenerateRequest,
  signal = AbortSignal.timeout(20_000),
): Promise<string> {
  const bytes: number[] = [];
  for await (const delta of engine.generate(request, signal)) bytes.push(...delta.tokens);
  return Buffer.from(bytes).toString();
}

export async function until(condition: () => boolean, what: string, timeoutMs = 10_000): Promise<void> {
  const end = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`waited ${timeoutMs} ms in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

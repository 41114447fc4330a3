import {
  decodeFloats,
  decodeTokenDelta,
  decodeTokens,
  decodeTokenTable,
  encodeGenerateRequest,
  encodeTokens,
  pack,
  unpack,
} from "../../protocol/codec.ts";
import type {
  Embedding,
  Engine,
  EngineDescriptor,
  EngineHealth,
  EngineLoads,
  Tokenizing,
} from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { calledEndpoint, codecOfEndpoint, type WorkerRecord, workerEndpoints } from "../../protocol/instance.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { CallStream } from "../../runtime/request-plane/call-stream.ts";
import { callUnary } from "../../runtime/request-plane/call-unary.ts";
import type { ClientStream, RequestPlaneClient, StreamSink } from "../../runtime/request-plane/plane.ts";
import { RunningRequests } from "../running-requests.ts";
import type { TokenizeCall, WorkerStatus } from "./serve-unary.ts";

const UNARY_TIMEOUT_MS = 30_000;

/**
 * A worker on the request plane, seen as an Engine again. For tests and tools; the frontend talks to the plane itself.
 * `loads` counts what runs through this object. The plane stays open on `close`: it belongs to the caller.
 */
export class RemoteEngine implements Engine {
  readonly tokenizing?: Tokenizing;
  readonly embedding?: Embedding;
  readonly #plane: RequestPlaneClient;
  readonly #record: WorkerRecord;
  readonly #running = new RunningRequests<CallStream<TokenDelta>>();

  private constructor(plane: RequestPlaneClient, record: WorkerRecord, table: TokenTable | undefined) {
    this.#plane = plane;
    this.#record = record;
    if (table) this.tokenizing = { tokenize: this.#tokenize, tokenTable: () => table };
    if (record.card.embeddingLength !== undefined) this.embedding = { embed: this.#embed };
  }

  static async connect(plane: RequestPlaneClient, record: WorkerRecord, signal: AbortSignal): Promise<RemoteEngine> {
    const call = {
      endpoint: calledEndpoint(record, workerEndpoints.tokenTable),
      requestId: uniqueId(),
      body: noBytes,
      timeoutMs: UNARY_TIMEOUT_MS,
    };
    const table = await callUnary(plane, record.address, call, signal).then(decodeTokenTable, (thrown: unknown) => {
      if (thrown instanceof StatorError && thrown.code === "unsupported_parameter") return undefined;
      throw thrown;
    });
    return new RemoteEngine(plane, record, table);
  }

  describe(): EngineDescriptor {
    const { engine, card, capacity } = this.#record;
    return { ...engine, card, capacity };
  }

  async health(_probe: "liveness" | "canary", signal: AbortSignal): Promise<EngineHealth> {
    if (this.#running.isDraining) return { state: "draining" };
    return (await this.status(signal)).health;
  }

  async status(signal: AbortSignal): Promise<WorkerStatus> {
    return unpack(await this.#ask(workerEndpoints.status, noBytes, signal)) as WorkerStatus;
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta> {
    const open = (sink: StreamSink): ClientStream => {
      this.#running.assertAccepting();
      const { requestId, timeoutMs } = request;
      const codec = codecOfEndpoint(this.#record, workerEndpoints.generate);
      const body = encodeGenerateRequest(request, codec); // may throw
      this.#running.add(stream);
      return this.#plane.open(
        this.#record.address,
        { endpoint: calledEndpoint(this.#record, workerEndpoints.generate), requestId, body, timeoutMs },
        sink,
      );
    };
    const onOver = (): void => this.#running.remove(stream);
    const stream = new CallStream(open, decodeTokenDelta, signal, { onOver });
    return stream;
  }

  loads(): EngineLoads {
    return { running: this.#running.size, waiting: 0 };
  }

  drain(signal: AbortSignal): Promise<void> {
    return this.#running.drain(signal);
  }

  async close(): Promise<void> {
    for (const stream of this.#running.close()) stream.kill();
  }

  readonly #tokenize: Tokenizing["tokenize"] = async (text, options, signal) => {
    const call: TokenizeCall = { text, ...options };
    return decodeTokens(await this.#ask(workerEndpoints.tokenize, pack(call), signal));
  };

  readonly #embed: Embedding["embed"] = async (tokens, signal) =>
    decodeFloats(await this.#ask(workerEndpoints.embed, encodeTokens(tokens), signal));

  #ask(endpoint: string, body: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
    const call = {
      endpoint: calledEndpoint(this.#record, endpoint),
      requestId: uniqueId(),
      body,
      timeoutMs: UNARY_TIMEOUT_MS,
    };
    return callUnary(this.#plane, this.#record.address, call, signal);
  }
}

const noBytes = new Uint8Array(0);

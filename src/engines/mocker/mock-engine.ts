import type { DisaggregatedEngine, StepResult } from "../../mocker/engine.ts";
import { createSimulatedEngine, type EngineSettings, engineConfig } from "../../mocker/index.ts";
import type {
  AdminAction,
  Engine,
  EngineDescriptor,
  EngineHealth,
  EngineLoads,
  Tokenizing,
} from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { GenerateRequest, TokenDelta } from "../../protocol/generate.ts";
import { buildTokenTable } from "../../protocol/token-table.ts";
import { RunningRequests } from "../running-requests.ts";
import { refuseUnsupported } from "../text/refuse-unsupported.ts";
import { MockStream, type MockStreamOwner } from "./mock-stream.ts";
import { blockKeysOf, naturalLength } from "./mock-text.ts";

export interface MockEngineOptions {
  /** Served name. Default `mocker`. */
  readonly name?: string;
  readonly aliases?: readonly string[];
  readonly settings: EngineSettings;
  /** Data-parallel ranks. Default 1. */
  readonly ranks?: number;
  /** Simulated time per real time. Default 1. */
  readonly speedup?: number;
  /** Default 131,072. */
  readonly contextLength?: number;
}

export interface MockEngineFaults {
  /** Frozen, nothing moves: no tokens, no signs of life. */
  freeze(frozen: boolean): void;
  /** Passes that begin from now on take so many times as long. 1 = as usual. */
  slowDown(factor: number): void;
  /** KV events are lost. */
  dropEvents(drop: boolean): void;
}

const CHAT_TEMPLATE =
  "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}" +
  "{% if add_generation_prompt %}assistant: {% endif %}";
const SIGN_OF_LIFE_MS = 2_000;
/** Longer delays do not fit into a timer. */
const MAX_TIMER_MS = 60_000;

/**
 * A simulated engine that serves live: tokens come when the simulation says so, divided by the speed-up. Tokens are
 * bytes; what it says follows from the prompt, so it is the same on every worker, resumed or not.
 */
export class MockEngine implements Engine, MockStreamOwner {
  readonly tokenizing: Tokenizing = { tokenize: async (text) => bytesOf(text), tokenTable: () => byteTable };
  readonly admin: ReadonlyMap<string, AdminAction> = new Map<string, AdminAction>([
    ["freeze", (argument) => this.#freeze(argument)],
    ["slow-down", (argument) => this.#slowDown(argument)],
  ]);
  /** What a fault script does to it. Each holds until it is taken back. */
  readonly faults: MockEngineFaults = {
    freeze: (frozen) => this.#hold(frozen),
    slowDown: (factor) => this.#simulation.faults.slowDown(factor),
    dropEvents: (drop) => this.#simulation.faults.dropKvEvents(drop),
  };
  readonly #descriptor: EngineDescriptor;
  readonly #blockTokens: number;
  readonly #simulation: DisaggregatedEngine;
  readonly #speedup: number;
  readonly #beganAtMs = performance.now();
  readonly #streams = new Map<number, MockStream>();
  readonly #idOf = new Map<MockStream, number>();
  readonly #running = new RunningRequests<MockStream>();
  #life: NodeJS.Timeout | undefined;
  #timer: NodeJS.Timeout | undefined;
  #nowMs = 0;
  #nextId = 0;
  #isFrozen = false;

  constructor(options: MockEngineOptions) {
    const config = engineConfig(options.settings, options.ranks);
    this.#simulation = createSimulatedEngine(options.settings, 0, options.ranks);
    this.#speedup = options.speedup ?? 1;
    this.#blockTokens = config.blockTokens;
    this.#descriptor = describe(options, config);
    this.#schedule();
  }

  describe(): EngineDescriptor {
    return this.#descriptor;
  }

  async health(): Promise<EngineHealth> {
    return this.#running.health;
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta> {
    return new MockStream(request, signal, this);
  }

  loads(): EngineLoads {
    const { running, waiting, activeBlocks } = this.#simulation.loads();
    return { running, waiting, usedBlocks: activeBlocks };
  }

  drain(signal: AbortSignal): Promise<void> {
    return this.#running.drain(signal);
  }

  async close(): Promise<void> {
    for (const stream of this.#running.close()) stream.fail(new StatorError("draining", "The engine was closed."));
    clearTimeout(this.#timer);
    this.#stopLife();
  }

  /** @internal */
  begin(stream: MockStream): void {
    this.#running.assertAccepting();
    const { request, promptHash } = stream;
    const { card } = this.#descriptor;
    refuseUnsupported(request, card);
    const { stop, tokens, generated } = request;
    if (new Set(stop.stopTokenIds).size >= card.vocabularySize && stop.minTokens > 0) {
      throw new StatorError("invalid_value", "Every token is a stop token.", { param: "stop_token_ids" });
    }
    const limit = Math.min(stop.maxTokens, card.contextLength - tokens.length);
    if (generated !== undefined && generated.length > limit) {
      throw new StatorError("invalid_value", "More tokens have been generated than the sequence may have.", {
        param: "generated",
      });
    }
    if (generated !== undefined && !stream.fits(generated)) {
      throw new StatorError("engine_error", "The generated tokens are not those of this prompt.");
    }
    const made = generated?.length ?? 0;
    const wanted = stop.ignoreEos ? limit : Math.min(limit, Math.max(naturalLength(promptHash), stop.minTokens));
    if (made >= wanted) {
      stream.progress(0, this.#endOf(stream)); // only the news of the end was lost
      return;
    }
    const id = this.#nextId++;
    this.#running.add(stream);
    this.#streams.set(id, stream);
    this.#idOf.set(stream, id);
    // Only while there is something to tell: thousands of idle engines share a process.
    this.#life ??= setInterval(this.#onLife, SIGN_OF_LIFE_MS).unref();
    this.#catchUp();
    const outputTokens = wanted - made;
    this.#simulation.submit(
      {
        id,
        inputTokens: tokens.length + made,
        outputTokens,
        blockKeys: blockKeysOf(tokens, promptHash, made + outputTokens, this.#blockTokens),
      },
      this.#nowMs,
    );
    this.#schedule();
  }

  /** @internal */
  leave(stream: MockStream): void {
    const id = this.#idOf.get(stream);
    if (id === undefined) return;
    this.#idOf.delete(stream);
    this.#streams.delete(id);
    this.#simulation.cancel(id, this.#nowMs);
    this.#running.remove(stream);
    if (this.#running.size === 0) this.#stopLife();
    this.#schedule();
  }

  #stopLife(): void {
    clearInterval(this.#life);
    this.#life = undefined;
  }

  readonly #onLife = (): void => {
    if (this.#isFrozen) return;
    for (const stream of this.#running) stream.signOfLife();
  };

  /** Runs the simulation up to the present; each step at its own time, so that a late timer distorts nothing. */
  #catchUp(): void {
    const presentMs = Math.max(this.#nowMs, (performance.now() - this.#beganAtMs) * this.#speedup);
    while (this.#simulation.nextWorkAtMs <= presentMs) {
      this.#nowMs = Math.max(this.#nowMs, this.#simulation.nextWorkAtMs);
      this.#tell(this.#simulation.step(this.#nowMs));
    }
    this.#nowMs = presentMs;
  }

  #tell(result: StepResult): void {
    // The arrays belong to the simulation, and a stream that ends changes it.
    const admitted = result.admitted.map(({ id, cachedTokens, again }) => ({ id, cachedTokens, again }));
    const counts = Array.from(
      { length: result.tokenRequests },
      (_, i) => [result.tokenIds[i]!, result.tokenCounts[i]!] as const,
    );
    const finished = new Set(result.finished);
    const rejected = [...result.rejected];
    for (const { id, cachedTokens, again } of admitted) if (!again) this.#streams.get(id)?.admitted(cachedTokens);
    for (const [id, count] of counts) {
      const stream = this.#streams.get(id);
      stream?.progress(count, finished.has(id) ? this.#endOf(stream) : undefined);
    }
    for (const id of rejected) {
      const message = "The simulated engine can never run this request: its KV cache or its waiting line is too small.";
      this.#streams.get(id)?.fail(new StatorError("overloaded", message));
    }
  }

  #endOf({ request, promptHash }: MockStream): "stop" | "length" {
    const { stop, tokens } = request;
    const limit = Math.min(stop.maxTokens, this.#descriptor.card.contextLength - tokens.length);
    return !stop.ignoreEos && Math.max(naturalLength(promptHash), stop.minTokens) < limit ? "stop" : "length";
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    if (this.#running.isClosed) return;
    const dueMs = this.#simulation.nextWorkAtMs;
    if (dueMs === Number.POSITIVE_INFINITY) return;
    const realMs = dueMs / this.#speedup - (performance.now() - this.#beganAtMs);
    this.#timer = setTimeout(this.#onTimer, Math.min(MAX_TIMER_MS, Math.max(0, realMs)));
  }

  readonly #onTimer = (): void => {
    this.#catchUp();
    this.#schedule();
  };

  #freeze(argument: unknown): object {
    const ms = numberOf(argument, "ms", 0, 86_400_000);
    this.#catchUp();
    this.#simulation.faults.freeze(this.#nowMs, this.#nowMs + ms);
    this.#schedule();
    return { frozenForMs: ms };
  }

  #hold(frozen: boolean): void {
    this.#isFrozen = frozen;
    this.#catchUp();
    if (frozen) this.#simulation.faults.freeze(this.#nowMs, Number.POSITIVE_INFINITY);
    else this.#simulation.faults.thaw(this.#nowMs);
    this.#schedule();
  }

  #slowDown(argument: unknown): object {
    const factor = numberOf(argument, "factor", 0.001, 1_000_000);
    this.#simulation.faults.slowDown(factor);
    return { factor };
  }
}

function describe(options: MockEngineOptions, config: ReturnType<typeof engineConfig>): EngineDescriptor {
  const ranks = options.ranks ?? 1;
  const poolTokens = config.blocks * config.blockTokens * ranks;
  const contextLength = Math.min(options.contextLength ?? 131_072, config.maxModelTokens, poolTokens);
  return {
    kind: "mocker",
    version: "1",
    capacity: {
      // The simulated scheduler has a waiting line of its own.
      maxRunning: Math.max(1024, 4 * config.maxSequences * ranks),
      totalBlocks: config.blocks === Number.POSITIVE_INFINITY ? Number.MAX_SAFE_INTEGER : config.blocks * ranks,
    },
    card: {
      name: options.name ?? "mocker",
      aliases: options.aliases ?? [],
      revision: "mocker-1",
      tokenizer: { kind: "bytes" },
      chatTemplate: CHAT_TEMPLATE,
      bosToken: "",
      eosToken: "",
      vocabularySize: 256,
      contextLength,
      blockSize: config.blockTokens,
      roles: ["aggregated"],
      capabilities: {
        maxTopLogprobs: -1,
        grammars: [],
        // What is said does not depend on sampling.
        parameters: [
          ...[
            "temperature",
            "topP",
            "topK",
            "minP",
            "presencePenalty",
            "frequencyPenalty",
            "repetitionPenalty",
            "seed",
          ],
          ...["maxTokens", "minTokens", "stopTokenIds", "ignoreEos"],
        ],
        resume: true,
      },
      kvLayout: "none",
      defaults: {},
    },
  };
}

function numberOf(argument: unknown, field: string, min: number, max: number): number {
  const value =
    typeof argument === "object" && argument !== null ? (argument as Record<string, unknown>)[field] : undefined;
  if (typeof value === "number" && value >= min && value <= max) return value;
  throw new StatorError("invalid_value", `${field} must be a number from ${min} to ${max}.`, { param: field });
}

function bytesOf(text: string): Uint32Array {
  return Uint32Array.from(Buffer.from(text, "utf8"));
}

const byteTable = buildTokenTable(Array.from({ length: 256 }, (_, byte) => ({ bytes: Uint8Array.of(byte), flags: 0 })));

import type { LlamaGrammar } from "node-llama-cpp";
import {
  type Engine,
  type EngineDescriptor,
  type EngineHealth,
  type EngineLoads,
  type GenerateRequest,
  StatorError,
  type TokenDelta,
  TokenFlag,
  type TokenTable,
} from "../../protocol/index.ts";
import { batchPlace } from "./batch-order.ts";
import type { BlockListener } from "./block-account.ts";
import { checkRequest } from "./check-request.ts";
import type { DeltaQueue } from "./delta-queue.ts";
import { createEmbedding, type LlamaEmbedding } from "./embedding.ts";
import { Generation } from "./generation.ts";
import { GrammarCache } from "./grammar.ts";
import { maxTopLogprobs } from "./model-card.ts";
import { asTokens, LogitBias, type Native } from "./native.ts";
import { NativeStepWatch } from "./native-step-watch.ts";
import { runSequence } from "./run-sequence.ts";
import { createSampling, neverShift } from "./sampling.ts";
import { type SequenceLease, SequencePool } from "./sequence-pool.ts";
import { createTokenizing } from "./tokenizing.ts";
import { within } from "./within.ts";

/** A liveness answer must not wait, and a canary not for long. */
const canaryTimeoutMs = 3000;
/** After this `close` gives a hung llama.cpp up; the process has to end. */
const closeTimeoutMs = 5000;

export interface EngineParts {
  readonly native: Native;
  readonly table: TokenTable;
  readonly descriptor: EngineDescriptor;
  readonly chunk: number;
  readonly exact: boolean;
  readonly batchSize: number;
  /** What a token of a prompt costs on a slow core. */
  readonly msPerToken: number;
  readonly threads: number;
  readonly randomSeed: () => number;
  readonly stallTimeoutMs: number;
  readonly blockListener: BlockListener | undefined;
}

interface Job {
  readonly request: GenerateRequest;
  readonly lease: SequenceLease;
  readonly grammar: LlamaGrammar | undefined;
  readonly output: DeltaQueue;
  readonly stop: AbortSignal;
  readonly deadline: number;
}

export class LlamaEngine implements Engine {
  readonly tokenizing;
  readonly embedding: LlamaEmbedding;
  private readonly parts: EngineParts;
  private readonly pool: SequencePool;
  private readonly sequences;
  private readonly grammars: GrammarCache;
  private readonly watch = new NativeStepWatch();
  private readonly closing = new AbortController();
  private readonly running = new Set<Promise<void>>();
  private readonly endIds: readonly number[];
  private active = 0;
  private probing: Promise<string | undefined> | undefined;
  private draining = false;
  private closed: Promise<void> | undefined;

  /** @internal Use {@link createLlamaEngine}. */
  constructor(parts: EngineParts) {
    this.parts = parts;
    const { native, table, descriptor } = parts;
    const { card, capacity } = descriptor;
    this.pool = new SequencePool({
      sequences: capacity.maxRunning,
      blockSize: card.blockSize,
      ...(parts.exact ? { exactChunk: parts.chunk } : {}),
      ...(parts.blockListener === undefined ? {} : { listener: parts.blockListener }),
    });
    this.sequences = Array.from({ length: capacity.maxRunning }, () =>
      native.context.getSequence({ contextShift: neverShift }),
    );
    this.grammars = new GrammarCache(native);
    new LogitBias(native); // fails at the start, not at the first request, when the package has changed
    // llama.cpp knows end tokens that the metadata does not name.
    const endIds: number[] = [];
    for (let id = 0; id < card.vocabularySize; id++) {
      if (native.model.isEogToken(asTokens([id])[0])) endIds.push(id);
    }
    for (const id of endIds) table.flags[id] = table.flags[id]! | TokenFlag.endOfGeneration;
    this.endIds = endIds;
    this.tokenizing = createTokenizing(native, table, card.contextLength);
    this.embedding = createEmbedding(native, {
      contextLength: card.contextLength,
      batchSize: parts.batchSize,
      threads: parts.threads,
      msPerToken: parts.msPerToken,
      vocabularySize: card.vocabularySize,
      watch: this.watch,
    });
  }

  describe(): EngineDescriptor {
    return this.parts.descriptor;
  }

  loads(): EngineLoads {
    return { running: this.active, waiting: 0, usedBlocks: this.pool.usedBlocks };
  }

  /** Milliseconds since the last native step ended while others are outstanding; 0 when nothing is. */
  get stalledMs(): number {
    return this.watch.stalledMs;
  }

  async health(probe: "liveness" | "canary", signal: AbortSignal): Promise<EngineHealth> {
    signal.throwIfAborted();
    if (this.closed !== undefined) return { state: "unhealthy", reason: "The engine is closed." };
    const stalled = this.watch.stalledMs;
    if (stalled > this.parts.stallTimeoutMs) {
      return { state: "unhealthy", reason: `llama.cpp has not finished a step for ${Math.round(stalled / 1000)} s.` };
    }
    if (probe === "canary") {
      const reason = await this.canary(signal);
      if (reason !== undefined) return { state: "unhealthy", reason };
    }
    return this.draining ? { state: "draining" } : { state: "ready" };
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<TokenDelta> {
    return new Generation((output, stop) => this.start(request, output, stop), signal, this.closing.signal);
  }

  async drain(signal: AbortSignal): Promise<void> {
    this.draining = true;
    if (signal.aborted) return;
    let onAbort: (() => void) | undefined;
    await new Promise<void>((resolve) => {
      onAbort = () => resolve();
      signal.addEventListener("abort", onAbort);
      void this.idle().then(resolve);
    });
    if (onAbort !== undefined) signal.removeEventListener("abort", onAbort);
  }

  close(): Promise<void> {
    this.closed ??= this.dispose();
    return this.closed;
  }

  /** Checks the request, takes a sequence, and runs until the end. Throws before anything runs; then never. */
  private async start(
    request: GenerateRequest,
    output: DeltaQueue,
    stop: AbortSignal,
  ): Promise<{ readonly ended: Promise<void> }> {
    const arrival = performance.now();
    const { card } = this.parts.descriptor;
    if (this.closed !== undefined || this.draining)
      throw new StatorError("draining", "The engine takes no new requests.");
    const { vocabularySize, contextLength } = card;
    checkRequest(request, { vocabularySize, contextLength, maxTopLogprobs, isEndToken: this.isEndToken });
    const grammar = request.grammar === undefined ? undefined : await this.grammars.compiled(request.grammar);
    if (stop.aborted) {
      output.end({
        reason: "abort",
        usage: {
          promptTokens: request.tokens.length,
          completionTokens: request.generated?.length ?? 0,
          cachedTokens: 0,
        },
      });
      return { ended: Promise.resolve() };
    }
    // A probe holds its sequence for one token; a request must not be refused because of it.
    if (this.probing !== undefined && this.pool.busy === this.sequences.length) await this.probing;
    const lease = this.pool.acquire(request.tokens);
    if (lease === undefined) {
      throw new StatorError("overloaded", "All sequences of the engine are busy.", { retryAfterSeconds: 1 });
    }
    this.active++;
    const ended = this.run({ request, lease, grammar, output, stop, deadline: arrival + request.timeoutMs });
    this.running.add(ended);
    void ended.finally(() => this.running.delete(ended));
    return { ended };
  }

  /** Never rejects. The sequence is free before the consumer hears of the end, so that its next request finds it. */
  private async run(job: Job): Promise<void> {
    const { request, lease, grammar, output } = job;
    const { native, chunk, randomSeed } = this.parts;
    const { contextLength } = this.parts.descriptor.card;
    const hurry = (): void => native.order.hurry(lease.index);
    job.stop.addEventListener("abort", hurry, { once: true });
    let end: () => void;
    try {
      const progress = grammar === undefined ? undefined : this.grammars.begin(grammar);
      const sampling = createSampling(native, request, {
        endIds: [...this.endIds, ...request.stop.stopTokenIds],
        grammar: progress,
        randomSeed,
        contextLength,
      });
      const finish = await runSequence({
        request,
        sequence: this.sequences[lease.index]!,
        lease,
        pool: this.pool,
        sampling,
        grammar: progress,
        output,
        watch: this.watch,
        chunk,
        contextLength,
        isEndToken: this.isEndToken,
        signal: job.stop,
        deadline: job.deadline,
      });
      end = () => output.end(finish);
    } catch (cause) {
      const error =
        cause instanceof StatorError
          ? cause
          : new StatorError("engine_error", "llama.cpp failed on this request.", { cause });
      end = () => output.fail(error);
    }
    job.stop.removeEventListener("abort", hurry);
    native.order.settle(lease.index);
    this.pool.release(lease);
    this.active--;
    end();
  }

  private readonly isEndToken = (token: number): boolean =>
    (this.parts.table.flags[token]! & TokenFlag.endOfGeneration) !== 0;

  /** Runs one token through a free sequence and takes it back, so that the cache stays. Undefined = all is well. */
  private async canary(signal: AbortSignal): Promise<string | undefined> {
    if (this.probing === undefined) {
      const idle = this.pool.acquireIdle();
      if (idle === undefined) return undefined; // all sequences are busy and the watch sees them move
      this.probing = this.probe(idle.index).finally(() => {
        this.pool.release(idle);
        this.probing = undefined;
      });
    }
    return await within(canaryTimeoutMs, this.probing, signal, "llama.cpp did not answer the probe in time.");
  }

  private async probe(index: number): Promise<string | undefined> {
    const sequence = this.sequences[index]!;
    try {
      if (this.pool.held(index) > this.parts.descriptor.card.contextLength - 4) {
        this.pool.truncate(index, 0);
        await sequence.clearHistory();
      }
      const held = this.pool.held(index);
      const options = { yieldEogToken: true, contextShift: neverShift, evaluationPriority: batchPlace(index) };
      const steps = sequence.evaluate(asTokens([this.endIds[0] ?? 0]), options);
      await this.watch.step(steps.next());
      await steps.return();
      await this.watch.step(sequence.eraseContextTokenRanges([{ start: held, end: held + 1 }]));
      return undefined;
    } catch (error) {
      this.pool.truncate(index, 0);
      await sequence.clearHistory().catch(() => undefined);
      return `llama.cpp failed on the probe: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  private async idle(): Promise<void> {
    while (this.running.size > 0) await Promise.allSettled(this.running);
    await this.probing;
  }

  private async dispose(): Promise<void> {
    this.draining = true;
    this.closing.abort();
    const { context, model, llama } = this.parts.native;
    const freed = (async () => {
      await this.idle();
      await this.embedding.dispose();
      await context.dispose();
      await model.dispose();
      await llama.dispose();
    })();
    await within(closeTimeoutMs, freed, undefined, undefined);
  }
}

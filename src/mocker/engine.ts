import type { ForwardPassMetrics } from "./forward-pass.ts";
import type { KvEvent } from "./kv-events.ts";

/**
 * A simulated inference engine. It has no clock, no timer and no I/O: whoever drives it says what time it is, an event
 * loop over hundreds of engines as well as a timer of a live worker.
 *
 *     submit, cancel, faults            nextWorkAtMs = now (idle engine) or unchanged (in a pass)
 *     step(now)  idle, work waiting     begins a pass; nextWorkAtMs = its end
 *     step(now)  pass over              ends the pass: its tokens exist from now on; nextWorkAtMs = now if there is more
 *
 *     step(now)  blocks from a slower cache are here: takes them in; whoever waited for them is next in line
 *
 * One step does one of these things. So a driver can hand in what arrives at the very moment at which a pass
 * ends, and the next pass takes it along. Nothing of a pass is visible before its end, except for its KV events.
 *
 * All calls take a time that never goes back. `step` may only be called when `nextWorkAtMs <= nowMs`.
 */
export interface SimulatedEngine {
  /** When the engine next needs `step`; Infinity while it has nothing to do, is frozen for good, or dead. Read it again after every call. */
  readonly nextWorkAtMs: number;
  /** A pass is under way, so that the next step ends one. */
  readonly inPass: boolean;
  /** Takes a request. Its fate (admitted, rejected, finished) comes with later steps. An id may be used once at a time. */
  submit(request: SimulatedRequest, nowMs: number): void;
  /** Drops a request and frees what it holds; in a pass, its share of the pass is spent but gives no token. False when unknown. */
  cancel(id: number, nowMs: number): boolean;
  step(nowMs: number): StepResult;
  loads(): EngineLoads;
  readonly faults: FaultControls;
}

/** What an engine with a role of its own in disaggregated serving can do besides. */
export interface DisaggregatedEngine extends SimulatedEngine {
  /** The KV of a request that was reserved (`kv: "awaited"`) is here: it may decode from now on. False when unknown. */
  kvArrived(id: number, nowMs: number): boolean;
  /** The blocks of a finished request that were held for a transfer (`holdKv`) may go. False when unknown. */
  releaseHeld(id: number, nowMs: number): boolean;
}

export interface SimulatedRequest {
  /** Chosen by the caller, a small non-negative integer; results refer to it. */
  readonly id: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Keys of the full blocks, in the engine's block size (see `engineBlockKeys`). May go beyond the prompt. */
  readonly blockKeys: readonly number[];
  /** Higher goes first among the waiting ones; equal ones by arrival. Default 0. */
  readonly priority?: number;
  /**
   * Where the KV of the prompt comes from. `compute` (default): this engine prefills. `arrived`: another engine did, and
   * the transfer is over. `awaited`: another engine does; blocks are reserved here at admission, decoding begins after
   * `kvArrived`. In both, the prompt is the original one and the first token, which the other engine gave; the KV of
   * all but that token comes from there.
   */
  readonly kv?: "compute" | "arrived" | "awaited";
  /** Data-parallel rank; by default the one with the fewest requests. */
  readonly rank?: number;
  /** Keep the blocks after the last token until `releaseHeld`: a decode engine still has to pull them. Default false. */
  readonly holdKv?: boolean;
}

/** What a step brought. The object and its arrays belong to the engine and hold until its next step. */
export interface StepResult {
  /** Requests that got tokens at the end of a pass, and how many: `tokenIds[i]` got `tokenCounts[i]`, for i < `tokenRequests`. */
  readonly tokenIds: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly tokenRequests: number;
  /** All their tokens are there. */
  readonly finished: readonly number[];
  /** Can never run here: longer than the model's context or the whole pool, or the waiting line is full. */
  readonly rejected: readonly number[];
  /** Left the waiting line; `cachedTokens` of their tokens need no prefill. */
  readonly admitted: readonly Admission[];
  /** Lost their place (and, in vLLM's way, all their KV) because blocks ran out; they wait again. */
  readonly preempted: readonly number[];
  /** Changes of the prefix cache, in order. They stand in the step that begins a pass, as in vLLM. */
  readonly kvEvents: readonly KvEvent[];
  /** At the end of a pass, one of each data-parallel rank; and once, with a time of zero, when the engine goes idle. */
  readonly metrics: readonly ForwardPassMetrics[];
}

export interface Admission {
  readonly id: number;
  /** Tokens found in the prefix cache (or, for KV of another engine, not computed here). */
  readonly cachedTokens: number;
  /** Tokens of the prompt that must be transferred to here: `kv: "awaited"` without what the cache had. */
  readonly missingTokens: number;
  /** It had been preempted or retracted before. */
  readonly again: boolean;
}

export interface EngineLoads {
  readonly running: number;
  readonly waiting: number;
  /** Tokens that the waiting ones will have to prefill, without a discount for the cache. */
  readonly waitingTokens: number;
  /** Blocks in use; blocks that are only cached; all blocks (Infinity in an endless pool). */
  readonly activeBlocks: number;
  readonly cachedBlocks: number;
  readonly totalBlocks: number;
}

/** Faults that a script can inject. They take effect at once. */
export interface FaultControls {
  /** Nothing moves until then; a pass under way ends that much later. Infinity: for good, or until `thaw`. */
  freeze(nowMs: number, untilMs: number): void;
  thaw(nowMs: number): void;
  /** Passes that begin from now on take this many times as long. 1 ends it. */
  slowDown(factor: number): void;
  /** The engine is gone, with all that it held. Returns the ids that it took along. It comes back empty after `restart`. */
  kill(): number[];
  /** The engine starts; it works after its start-up time. */
  restart(nowMs: number): void;
  /** While true, KV events are lost. */
  dropKvEvents(drop: boolean): void;
}

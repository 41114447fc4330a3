import type { ContextShiftOptions, EvaluationPriority, LlamaContextSequence } from "node-llama-cpp";
import { type Finish, type FinishReason, type GenerateRequest, StatorError } from "../../protocol/index.ts";
import { batchPlace } from "./batch-order.ts";
import type { DeltaQueue } from "./delta-queue.ts";
import type { GrammarProgress } from "./grammar-progress.ts";
import { tokenLogprob } from "./logprobs.ts";
import { asTokens } from "./native.ts";
import type { NativeStepWatch } from "./native-step-watch.ts";
import { neverShift, type Sampling } from "./sampling.ts";
import type { SequenceLease, SequencePool } from "./sequence-pool.ts";

/** Far above what a step takes that waits for its neighbours' chunks. */
const maxGrammarStepMs = 5000;
const none = new Uint32Array(0);

export interface SequenceRun {
  readonly request: GenerateRequest;
  readonly sequence: LlamaContextSequence;
  readonly lease: SequenceLease;
  readonly pool: SequencePool;
  readonly sampling: Sampling;
  /** The one that `sampling` uses. */
  readonly grammar: GrammarProgress | undefined;
  readonly output: DeltaQueue;
  readonly watch: NativeStepWatch;
  /** Tokens per prefill step; borders lie at multiples of it, counted from the start of the sequence. */
  readonly chunk: number;
  readonly contextLength: number;
  /** Ends the sequence, unless `ignoreEos`. */
  isEndToken(token: number): boolean;
  /** Stop as soon as possible. Looked at between native steps. */
  readonly signal: AbortSignal;
  /** On the scale of `performance.now()`. */
  readonly deadline: number;
}

/**
 * The life of one request on its sequence:
 *
 * ```
 * erase what differs -> prefill chunk by chunk -> replay -> token by token -> finish
 *                              |                    |             |
 *                              +------ abort, deadline -----------+
 * ```
 *
 * Tokens that another worker has generated are replayed one by one through the same evaluation and sampling as if they
 * were being generated, so that the KV, the random numbers, the penalties and the grammar stand where they would stand
 * without the interruption; only that the recorded token counts, not the sampled one.
 *
 * Tokens go to `output`, the end is returned or thrown as a StatorError. Afterwards the pool knows exactly what the
 * sequence holds; after a failed native step it holds nothing.
 */
export async function runSequence(run: SequenceRun): Promise<Finish> {
  const { generated = none } = run.request;
  try {
    if (generated.length === outputLimit(run)) return finish(run, "length", generated.length);
    await keepPrefix(run);
    const last = await prefill(run);
    return last === "aborted" ? finish(run, "abort", 0) : await decode(run, last, generated);
  } catch (error) {
    if (!(error instanceof StatorError)) await forget(run);
    throw asStatorError(error, run.request);
  }
}

function asStatorError(error: unknown, request: GenerateRequest): StatorError {
  if (error instanceof StatorError) return error;
  // The package's words for "no candidate is left".
  if (request.grammar !== undefined && error instanceof Error && error.message === "Failed to sample next token") {
    return grammarError(request, "The grammar comes to a point where no token of the model can follow.", error);
  }
  return new StatorError("engine_error", "llama.cpp failed on this request.", { cause: error });
}

async function keepPrefix(run: SequenceRun): Promise<void> {
  const { pool, lease, sequence } = run;
  const held = pool.held(lease.index);
  if (lease.reusable === held) return;
  pool.truncate(lease.index, lease.reusable);
  await run.watch.step(sequence.eraseContextTokenRanges([{ start: lease.reusable, end: held }]));
}

/** Evaluates all chunks but the last, whose evaluation gives the first token. */
async function prefill(run: SequenceRun): Promise<number[] | "aborted"> {
  const { request, chunk, lease } = run;
  let start = lease.reusable;
  for (;;) {
    if (run.signal.aborted) return "aborted";
    checkDeadline(run);
    const border = (Math.floor(start / chunk) + 1) * chunk;
    const piece = Array.from(request.tokens.subarray(start, border));
    if (border >= request.tokens.length) return piece;
    await run.watch.step(run.sequence.evaluateWithoutGeneratingNewTokens(asTokens(piece), evaluation(run)));
    run.pool.extend(lease.index, piece, "prefill");
    run.output.alive();
    start = border;
  }
}

async function decode(run: SequenceRun, lastChunk: number[], recorded: Uint32Array): Promise<Finish> {
  const { request, sampling, sequence, output, lease } = run;
  const wantsLogprobs = request.topLogprobs !== undefined;
  const looksTwice = wantsLogprobs && !sampling.reportsPlainProbabilities;
  const limit = outputLimit(run);
  const stopIds = new Set(request.stop.stopTokenIds);

  let pending = lastChunk;
  let generated = 0;
  const steps = sequence.evaluateWithMetadata(
    asTokens(lastChunk),
    { probabilities: wantsLogprobs && !looksTwice },
    { ...sampling.options, ...evaluation(run) },
  );
  try {
    for (;;) {
      const replays = generated < recorded.length;
      const plain = looksTwice && !replays ? await plainProbabilities(run, pending) : undefined;
      const began = performance.now();
      // What is handed in is evaluated next; the package takes the array that it began with for the first step.
      const step = await run.watch.step(steps.next(asTokens(pending)));
      if (request.grammar !== undefined && performance.now() - began > maxGrammarStepMs) {
        // The work of an ambiguous grammar can double with every token, so this has to end before the next one.
        await forget(run);
        throw grammarError(request, "The grammar is too ambiguous: one token took too long.");
      }
      if (step.done) throw new Error("The sequence ended without an end token.");
      run.pool.extend(lease.index, pending, generated === 0 ? "prefill" : "decode");

      const sampled: { token: number; probabilities?: ReadonlyMap<number, number> } = step.value;
      const token = replays ? recorded[generated]! : sampled.token;
      if (replays) {
        run.grammar?.replay(recorded, generated, sampled.token);
        if (generated + 1 === recorded.length) run.grammar?.replayIsOver();
        output.alive();
      } else {
        const ends = stopIds.has(token) || (!request.stop.ignoreEos && run.isEndToken(token));
        if (ends) return finish(run, "stop", generated, token);
        const probabilities = plain ?? sampled.probabilities;
        output.push(
          token,
          wantsLogprobs && probabilities !== undefined
            ? tokenLogprob(token, probabilities, request.topLogprobs ?? 0)
            : undefined,
        );
      }
      generated++;
      if (generated >= limit) return finish(run, "length", generated);
      if (output.isFull) await output.room();
      if (run.signal.aborted) return finish(run, "abort", generated);
      checkDeadline(run);
      sampling.accept(token);
      pending = [token];
    }
  } finally {
    await steps.return();
  }
}

/**
 * The model's own distribution before any sampling option: evaluates the pending tokens, looks, takes them back. The
 * package samples once per evaluation, and reports what its sampler left; so a request whose options change the
 * distribution pays for logprobs with a second evaluation, and keeps its text.
 */
async function plainProbabilities(run: SequenceRun, pending: number[]): Promise<ReadonlyMap<number, number>> {
  const held = run.pool.held(run.lease.index);
  const last = pending.length - 1;
  const results = await run.watch.step(
    run.sequence.controlledEvaluate(
      asTokens(pending).map((token, index) =>
        index === last
          ? [token, { generateNext: { probabilities: true, options: { temperature: 0, topK: 0, topP: 1 } } }]
          : token,
      ),
      evaluation(run),
    ),
  );
  await run.watch.step(run.sequence.eraseContextTokenRanges([{ start: held, end: held + pending.length }]));
  const probabilities = results[last]?.next.probabilities;
  if (probabilities === undefined) throw new Error("No probabilities came back.");
  return probabilities;
}

function evaluation(run: SequenceRun): { contextShift: ContextShiftOptions; evaluationPriority: EvaluationPriority } {
  return { contextShift: neverShift, evaluationPriority: batchPlace(run.lease.index) };
}

/** Most tokens that the sequence may have. */
function outputLimit({ request, contextLength }: SequenceRun): number {
  return Math.min(request.stop.maxTokens, contextLength - request.tokens.length);
}

/** `tokens`: those that were generated or replayed. */
function finish(run: SequenceRun, reason: FinishReason, tokens: number, stopTokenId?: number): Finish {
  const { request, lease } = run;
  // An abort during the replay takes nothing back from what was generated elsewhere.
  const completionTokens = Math.max(tokens, request.generated?.length ?? 0);
  return {
    reason,
    ...(stopTokenId === undefined ? {} : { stopTokenId }),
    usage: { promptTokens: request.tokens.length, completionTokens, cachedTokens: lease.reusable },
  };
}

function checkDeadline(run: SequenceRun): void {
  if (performance.now() >= run.deadline) {
    throw new StatorError("deadline_exceeded", `The request was not finished within ${run.request.timeoutMs} ms.`);
  }
}

function grammarError(request: GenerateRequest, message: string, cause?: unknown): StatorError {
  const param =
    request.grammar?.kind === "json_schema" ? "response_format.json_schema.schema" : "response_format.grammar";
  return new StatorError("invalid_value", message, { param, cause });
}

/** After a failed native step nobody knows what the sequence holds. */
async function forget(run: SequenceRun): Promise<void> {
  run.pool.truncate(run.lease.index, 0);
  if (run.sequence.disposed) return;
  // A failure here means that the context is gone; the next request on it says so.
  await run.sequence.clearHistory().catch(() => undefined);
}

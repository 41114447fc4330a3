import type { CustomBatchingPrioritizationStrategy, EvaluationPriority } from "node-llama-cpp";

/**
 * What goes into one llama.cpp batch: either the next token of every sequence that generates, or one prefill chunk of
 * one sequence, in turn when both wait.
 *
 * - Exactness: results depend on the shape of the batch. A chunk alone has the same shape as in a run without
 *   neighbours.
 * - Fairness: between two tokens of a stream lies at most one chunk of somebody's prompt.
 * - Abort: nothing takes a chunk back that is queued, but the one of an aborted request comes next, so that its
 *   sequence is free after two chunks, however many neighbours prefill.
 */
export class BatchOrder {
  private readonly hurried = new Set<number>();
  private lastWasChunk = false;

  /** The sequence was aborted. */
  hurry(sequence: number): void {
    this.hurried.add(batchPlace(sequence));
  }

  /** Its request has ended. */
  settle(sequence: number): void {
    this.hurried.delete(batchPlace(sequence));
  }

  readonly strategy: CustomBatchingPrioritizationStrategy = ({ items, size }) => {
    const chunks = items.filter((item) => item.tokens.length > 1);
    const urgent = this.hurried.size === 0 ? undefined : chunks.find((it) => this.hurried.has(it.evaluationPriority));
    const chunk = urgent ?? chunks[0];
    const singles = items.filter((item) => item.tokens.length === 1);
    if (chunk !== undefined && (urgent !== undefined || singles.length === 0 || !this.lastWasChunk)) {
      this.lastWasChunk = true;
      return [{ item: chunk, processAmount: Math.min(chunk.tokens.length, size) }];
    }
    this.lastWasChunk = false;
    // llama.cpp works through sequences in ascending order and has to sort its results back otherwise.
    singles.sort((a, b) => a.evaluationPriority - b.evaluationPriority);
    return singles.slice(0, size).map((item) => ({ item, processAmount: 1 }));
  };
}

/**
 * Tells the strategy which sequence an evaluation is for: batch items carry nothing else that names it. The package
 * itself uses the priority only in its own strategies, which are not used here.
 */
export function batchPlace(sequence: number): EvaluationPriority {
  return (sequence + 1) as EvaluationPriority;
}

/** Weight uses per second of a slow core. */
const slowCore = 2e10;

/** What a token of a prompt costs on a slow core, with a factor of two in hand. */
export function msPerToken(parameters: number): number {
  return (2 * 1000 * parameters) / slowCore;
}

/**
 * Tokens per prefill chunk. A chunk takes at most a fraction of a second (0.2 s) on a slow core, because nothing can
 * stop llama.cpp inside one; but at least 16 tokens, or a large model would prefill hardly faster than it generates.
 */
export function prefillChunk(options: { parameters: number; batchSize: number; usesGpu: boolean }): number {
  if (options.usesGpu) return options.batchSize;
  const affordable = (0.2 * slowCore) / Math.max(1, options.parameters);
  const rounded = 2 ** Math.floor(Math.log2(Math.max(1, affordable)));
  return Math.max(1, Math.min(options.batchSize, Math.max(16, rounded)));
}

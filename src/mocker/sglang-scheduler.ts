import type { Scheduler, SchedulerState } from "./scheduler.ts";
import type { Sequence } from "./sequence.ts";
import type { StepReport } from "./step-report.ts";

const initialRatio = 0.7;
const lowestPart = 0.14;
const decaySteps = 600;
/** Decode steps for which room is planned after a retraction. */
const stepsAfterRetraction = 20;
/** Longest-prefix-first costs a look-up per waiting one, so a longer line is served in order of arrival. */
const longestSortedLine = 128;
/** Up to this much in the cache counts as nothing, and this much in common counts as beginning alike. */
const inBatchPrefixTokens = 32;

/**
 * Schedules as SGLang does: a pass is either a prefill batch or a decode step of all running ones, and prefill goes
 * first. Memory is planned with a guess of how much of their answers the running ones will still give: the new-token
 * ratio, which sinks while all goes well. When a decode step finds too few blocks, the sequence with the fewest tokens
 * given goes back to the end of the line ("retraction"); what stays cached of it is found again.
 */
export class SglangScheduler implements Scheduler {
  readonly #highest: number;
  readonly #lowest: number;
  #ratio: number;
  /** The one prompt that is between two chunks. */
  #chunked: Sequence | undefined;

  constructor(conservativeness: number) {
    this.#highest = Math.min(1, initialRatio * conservativeness);
    this.#lowest = this.#highest * lowestPart;
    this.#ratio = this.#highest;
  }

  schedule(state: SchedulerState, report: StepReport): void {
    if (state.running.length === 0 && state.waiting.length === 0) this.#ratio = this.#highest;
    for (let retracted = true; retracted && state.pass.length === 0; ) {
      this.#prefill(state, report);
      // When all who decode are retracted, the prompt between two chunks, or the first in line, has room now.
      retracted = state.pass.length === 0 && this.#decode(state, report);
    }
  }

  forget(sequence: Sequence): void {
    if (this.#chunked === sequence) this.#chunked = undefined;
  }

  #prefill(state: SchedulerState, report: StepReport): void {
    const { waiting, running, pool, config } = state;
    const page = config.blockTokens;
    const pages = (tokens: number): number => Math.ceil(tokens / page) * page;
    let room = pool.available * page - this.#reserved(state);
    let batchBudget = config.maxBatchedTokens;
    let chunkBudget = config.chunkedPrefill ? config.sglang.chunkedPrefillTokens : Number.POSITIVE_INFINITY;

    const chunked = this.#chunked;
    if (chunked !== undefined) {
      const tokens = this.#nextChunk(chunked, chunkBudget, state);
      if (tokens === 0) return;
      state.take(chunked, tokens);
      if (chunked.computed + tokens < chunked.known) return; // it has used up the chunk budget
      this.#chunked = undefined;
      room -= pages(tokens) + expectedOutput(chunked, config.sglang.clipMaxNewTokens);
      batchBudget -= pages(tokens);
      chunkBudget -= pages(tokens);
    }
    if (config.sglang.policy === "longest-prefix") sortByPrefix(state);
    for (let next = waiting.at(0); next !== undefined; next = waiting.at(0)) {
      if (state.sequences >= config.maxSequences) return;
      const cached = state.cachedBlocks(next);
      const missing = next.kv === "compute" ? next.known - cached.blocks * page : 1;
      const whole = missing <= chunkBudget;
      const tokens = whole ? missing : Math.floor(chunkBudget / page) * page;
      if (tokens <= 0) return;
      if (pages(tokens) > batchBudget && batchBudget < config.maxBatchedTokens) return;
      // What is only cached stops being evictable when it is used, so it takes room as well.
      const reused = (cached.blocks - cached.activeBlocks) * page;
      const moved = next.kv === "compute" ? 0 : pages(next.known - cached.blocks * page);
      const output = whole ? expectedOutput(next, config.sglang.clipMaxNewTokens) : 0;
      const need = pages(tokens) + reused + moved + output;
      if (need >= room) return;
      const available = pool.available;
      if (state.beginLoading(next, cached)) {
        room -= (available - pool.available) * page; // the rest of it is planned when it comes back
        continue;
      }
      room -= need;
      waiting.shift();
      state.adopt(next, cached, report);
      if (next.kv !== "compute") {
        state.admitTransferred(next);
        continue; // it decodes with the others
      }
      state.coverPlanned(next, next.computed + tokens);
      running.push(next);
      state.take(next, tokens);
      batchBudget -= pages(tokens);
      chunkBudget -= pages(tokens);
      if (!whole) {
        this.#chunked = next;
        return;
      }
    }
  }

  /** What the next chunk can be: of the budget, and of what the pool can still give. Its blocks are taken. */
  #nextChunk(sequence: Sequence, budget: number, state: SchedulerState): number {
    const page = state.config.blockTokens;
    const missing = sequence.known - sequence.computed;
    const room = sequence.capacity - sequence.computed + state.pool.available * page;
    const most = Math.min(budget, room);
    const tokens = missing <= most ? missing : Math.floor(most / page) * page;
    if (tokens > 0) state.coverPlanned(sequence, sequence.computed + tokens);
    return tokens;
  }

  /** Tokens that those in memory are expected to need, with a page of overhead for each. */
  #reserved(state: SchedulerState): number {
    const { running, awaiting, config } = state;
    const clip = config.sglang.clipMaxNewTokens;
    let output = 0;
    for (const sequence of running) output += expectedOutput(sequence, clip);
    for (const sequence of awaiting) output += expectedOutput(sequence, clip);
    return (running.length + awaiting.size) * config.blockTokens + output * this.#ratio;
  }

  /** Returns whether anyone was retracted. */
  #decode(state: SchedulerState, report: StepReport): boolean {
    const { running, pool } = state;
    let retracted = false;
    while (neededBlocks(state) > pool.available) {
      const victim = fewestGiven(running);
      if (victim === undefined) break;
      running.splice(running.indexOf(victim), 1);
      victim.dropBlocks(pool);
      state.waiting.push(victim);
      report.preempted.push(victim.id);
      retracted = true;
    }
    for (const sequence of running) {
      if (!sequence.decoding) continue;
      const end = sequence.computed + sequence.burst;
      if (end >= sequence.capacity) state.coverPlanned(sequence, end);
      state.take(sequence, sequence.burst);
    }
    if (retracted) this.#ratio = ratioAfterRetraction(running);
    else this.#ratio = Math.max(this.#lowest, this.#ratio - (this.#highest - this.#lowest) / decaySteps);
    return retracted;
  }
}

function expectedOutput(sequence: Sequence, clip: number): number {
  return Math.min(sequence.outputTokens - sequence.given, clip);
}

/** Blocks that the decoding ones need for their next tokens, beyond those that they hold. */
function neededBlocks({ running, config }: SchedulerState): number {
  let blocks = 0;
  for (const sequence of running) {
    if (!sequence.decoding) continue;
    const beyond = sequence.computed + sequence.burst - sequence.capacity;
    if (beyond > 0) blocks += Math.ceil(beyond / config.blockTokens);
  }
  return blocks;
}

/** Whom to retract: the fewest tokens given; among equals the longest prompt, then the newest. */
function fewestGiven(running: readonly Sequence[]): Sequence | undefined {
  let victim: Sequence | undefined;
  for (const sequence of running) {
    if (!sequence.decoding) continue;
    if (
      victim === undefined ||
      sequence.given < victim.given ||
      (sequence.given === victim.given && sequence.inputTokens >= victim.inputTokens)
    ) {
      victim = sequence;
    }
  }
  return victim;
}

/** The part of their answers that the rest has given, with room for some steps more. */
function ratioAfterRetraction(running: readonly Sequence[]): number {
  let given = 0;
  let all = 0;
  for (const sequence of running) {
    given += sequence.given + stepsAfterRetraction;
    all += sequence.outputTokens;
  }
  return all === 0 ? 1 : Math.min(1, given / all);
}

/**
 * Who finds most in the cache goes first. Of those that find next to nothing but begin alike, all but the first go to
 * the end: what the first computes, they will find. Ties and equal priorities keep the order of arrival.
 */
function sortByPrefix(state: SchedulerState): void {
  const { waiting, config } = state;
  if (waiting.length < 2 || waiting.length > longestSortedLine) return;
  const beginning = Math.ceil(inBatchPrefixTokens / config.blockTokens) - 1;
  const seen = new Set<number>();
  const ranked = waiting.toArray().map((sequence) => {
    let rank = state.cachedBlocks(sequence).blocks;
    const key = sequence.keys[beginning];
    if (key !== undefined && rank * config.blockTokens <= inBatchPrefixTokens) {
      if (seen.has(key)) rank = -1;
      else seen.add(key);
    }
    return { sequence, rank };
  });
  ranked.sort((a, b) => b.sequence.priority - a.sequence.priority || b.rank - a.rank);
  waiting.reorder(ranked.map(({ sequence }) => sequence));
}

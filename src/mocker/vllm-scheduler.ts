import type { Scheduler, SchedulerState } from "./scheduler.ts";
import type { Sequence } from "./sequence.ts";
import type { StepReport } from "./step-report.ts";

/**
 * Schedules as vLLM does: prefill and decode share a pass and its token budget.
 *
 * 1. The running ones, in order, get tokens from the budget: one (or a burst) when they decode, a chunk when they
 *    prefill. When blocks run out, the newest (or oldest) running one loses all and goes to the front of the line.
 * 2. If nobody was preempted, waiting ones are admitted, while there are budget and room. All of a sequence's current
 *    tokens must fit into what is free or evictable, although only a chunk is computed now: a prompt that would run out
 *    of blocks half-way is not begun.
 */
export class VllmScheduler implements Scheduler {
  schedule(state: SchedulerState, report: StepReport): void {
    for (let preempted = true; preempted && state.pass.length === 0; ) {
      const before = report.preempted.length;
      const budget = this.#continueRunning(state, report);
      preempted = report.preempted.length > before;
      if (!preempted) this.#admit(state, report, budget);
      // The preempted may have been in the pass already; what they were to compute was refunded. When nobody is left
      // in the pass, there are fewer running ones now: the next round ends differently.
      else removeUnscheduled(state.pass);
    }
  }

  forget(): void {}

  #continueRunning(state: SchedulerState, report: StepReport): number {
    const { running, config } = state;
    let budget = config.maxBatchedTokens;
    for (let index = 0; index < running.length && budget > 0; index++) {
      const sequence = running[index]!;
      const tokens = sequence.decoding
        ? Math.min(sequence.burst, budget)
        : Math.min(sequence.known - sequence.computed, budget);
      const end = sequence.computed + tokens;
      while (end >= sequence.capacity && !state.cover(sequence, end)) {
        const victim = config.preemption === "lifo" ? running[running.length - 1]! : running[0]!;
        const place = running.indexOf(victim);
        running.splice(place, 1);
        if (place < index) index -= 1;
        budget += victim.scheduled;
        preempt(victim, state, report);
        if (victim === sequence) return budget;
      }
      if (sequence.decoding) sequence.burst = tokens;
      state.take(sequence, tokens);
      budget -= tokens;
    }
    return budget;
  }

  #admit(state: SchedulerState, report: StepReport, passBudget: number): void {
    const { waiting, running, pool, config } = state;
    let budget = passBudget;
    for (let next = waiting.at(0); next !== undefined && budget > 0; next = waiting.at(0)) {
      if (state.sequences >= config.maxSequences) return;
      const cached = state.cachedBlocks(next);
      if (state.blocksFor(next.known) - cached.activeBlocks > pool.available) return;
      if (state.beginLoading(next, cached)) continue;
      const missing = next.known - cached.blocks * config.blockTokens;
      const elsewhere = next.kv !== "compute";
      if (!config.chunkedPrefill && !elsewhere && missing > budget) return;
      waiting.shift();
      state.adopt(next, cached, report);
      if (elsewhere) {
        state.admitTransferred(next);
        if (state.awaiting.has(next)) continue;
      } else running.push(next);
      const tokens = elsewhere ? 1 : Math.min(missing, budget);
      next.burst = 1;
      state.coverPlanned(next, next.computed + tokens); // there is room: the gate above counted it
      state.take(next, tokens);
      budget -= tokens;
    }
  }
}

function preempt(victim: Sequence, state: SchedulerState, report: StepReport): void {
  victim.scheduled = 0;
  victim.dropBlocks(state.pool);
  state.waiting.pushFront(victim);
  report.preempted.push(victim.id);
}

function removeUnscheduled(pass: Sequence[]): void {
  let kept = 0;
  for (const sequence of pass) {
    if (sequence.scheduled > 0) pass[kept++] = sequence;
  }
  pass.length = kept;
}

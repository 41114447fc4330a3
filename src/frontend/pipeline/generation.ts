import type { StatorError } from "../../protocol/errors.ts";
import type { Usage } from "../../protocol/generate.ts";
import type { Answer } from "./answer.ts";
import { catalogued } from "./catalogued.ts";
import type { Flushable } from "./flush-queue.ts";
import type { Migrated } from "./migrated.ts";
import { Sequence, type SequenceOwner } from "./sequence.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import type { Services } from "./services.ts";

/** Sequences of one request that run at once; the others wait for a place. */
const MAX_PARALLEL = 32;

/** What a request's sequences have in common: its prompts, and how many choices each of them has. */
export interface GenerationPlan {
  readonly sequences: readonly SequencePlan[];
  readonly choicesPerPrompt: number;
  /** Aborts when the client has gone; the reason is a StatorError. */
  readonly signal: AbortSignal;
  /** One of them goes on with another worker. */
  readonly onMigrated: (migrated: Migrated) => void;
}

/**
 * The sequences of one request as one piece of work: starts them, hands their text to the answer in batches, and ends
 * when all are done. The first failure ends the others.
 */
export class Generation implements SequenceOwner, Flushable {
  readonly #plan: GenerationPlan;
  readonly #services: Services;
  readonly #answer: Answer;
  readonly #sequences: Sequence[];
  readonly #promptTokens: number;
  #started = 0;
  #running = 0;
  #settled = 0;
  /** The first `#changedCount` entries count; the array is used again and again. */
  readonly #changed: Sequence[] = [];
  #changedCount = 0;
  #queued = false;
  #over = false;
  #resolve!: () => void;
  #reject!: (error: StatorError) => void;

  constructor(plan: GenerationPlan, services: Services, answer: Answer) {
    this.#plan = plan;
    this.#services = services;
    this.#answer = answer;
    this.#sequences = plan.sequences.map((sequence) => new Sequence(sequence, services, this));
    let promptTokens = 0;
    for (let i = 0; i < plan.sequences.length; i += plan.choicesPerPrompt) {
      promptTokens += plan.sequences[i]!.request.tokens.length;
    }
    this.#promptTokens = promptTokens;
  }

  /** The first worker that took a part of the work. */
  get workerId(): string | undefined {
    return this.#sequences[0]!.workerId;
  }

  /** Why that worker. */
  get why(): string {
    return this.#sequences[0]!.why;
  }

  get firstTokenAt(): number | undefined {
    let first: number | undefined;
    for (const { firstTokenAt } of this.#sequences) {
      if (firstTokenAt !== undefined && (first === undefined || firstTokenAt < first)) first = firstTokenAt;
    }
    return first;
  }

  get paused(): boolean {
    return this.#answer.paused;
  }

  /** So far: prompts count once, however many choices they have. */
  usage(): Usage {
    let completionTokens = 0;
    let cachedTokens = 0;
    for (let i = 0; i < this.#sequences.length; i += this.#plan.choicesPerPrompt) {
      let cached = 0;
      for (let j = i; j < i + this.#plan.choicesPerPrompt; j++) {
        completionTokens += this.#sequences[j]!.completionTokens;
        cached = Math.max(cached, this.#sequences[j]!.cachedTokens);
      }
      cachedTokens += cached;
    }
    return { promptTokens: this.#promptTokens, completionTokens, cachedTokens };
  }

  /** Resolves when the answer is complete; rejects with the first failure, after everything has been stopped. */
  async run(): Promise<void> {
    const { signal } = this.#plan;
    const onAbort = (): void => this.fail(signal.reason as StatorError);
    signal.addEventListener("abort", onAbort, { once: true });
    try {
      await new Promise<void>((resolve, reject) => {
        this.#resolve = resolve;
        this.#reject = reject;
        if (signal.aborted) onAbort();
        else this.#startMore();
      });
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  /** Ends the request with an error, and its sequences at once. */
  fail(error: StatorError): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#answer.started) this.#lastWords();
    for (let i = 0; i < this.#started; i++) this.#sequences[i]!.kill();
    this.#reject(error);
  }

  flushFailed(thrown: unknown): void {
    this.fail(catalogued(thrown));
  }

  /** What came before the failure still goes out, when it can. */
  #lastWords(): void {
    try {
      this.#deliver(false);
    } catch {
      // The failure that is being reported is why.
    }
  }

  /** The reader has caught up. */
  resume(): void {
    for (let i = 0; i < this.#started; i++) this.#sequences[i]!.resume();
  }

  flush(): void {
    this.#queued = false;
    if (this.#over) return;
    const last = this.#settled === this.#sequences.length;
    this.#deliver(last);
    if (!last) return;
    this.#answer.complete(this.#sequences, this.usage());
    this.#over = true;
    this.#resolve();
  }

  onChanged(sequence: Sequence): void {
    if (!sequence.marked) {
      sequence.marked = true;
      this.#changed[this.#changedCount++] = sequence;
    }
    this.#queue();
  }

  onSettled(): void {
    this.#settled++;
    this.#queue();
  }

  onMigrated(migrated: Migrated): void {
    this.#plan.onMigrated(migrated);
  }

  onFailed(_sequence: Sequence, error: StatorError): void {
    this.fail(error);
  }

  onClosed(): void {
    this.#running--;
    this.#startMore();
  }

  #deliver(last: boolean): void {
    const count = this.#changedCount;
    this.#changedCount = 0;
    for (let i = 0; i < count; i++) this.#changed[i]!.marked = false;
    this.#answer.deliver(this.#changed, count, this.#usage, last);
  }

  #queue(): void {
    if (this.#queued || this.#over) return;
    this.#queued = true;
    this.#services.flushQueue.add(this);
  }

  #startMore(): void {
    while (!this.#over && this.#running < MAX_PARALLEL && this.#started < this.#sequences.length) {
      this.#running++;
      this.#sequences[this.#started++]!.start();
    }
  }

  readonly #usage = (): Usage => this.usage();
}

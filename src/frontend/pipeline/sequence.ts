import { decodeTokenDelta, MAX_DELTA_TOKENS, readPlainDelta } from "../../protocol/codec.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { Finish } from "../../protocol/generate.ts";
import type { Deadline } from "../../runtime/lifecycle/timer-wheel.ts";
import type { StreamSink } from "../../runtime/request-plane/plane.ts";
import type { AnswerFinish, ScoredToken, SequenceView } from "./answer.ts";
import { isSilent, nextCheckMs, overdue } from "./call-deadlines.ts";
import { catalogued } from "./catalogued.ts";
import type { Migrated } from "./migrated.ts";
import { type Next, Placement } from "./placement.ts";
import { SequenceOutput } from "./sequence-output.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import type { Services } from "./services.ts";
import { WorkerCall } from "./worker-call.ts";

/** Where the per-token path reads into; used within one call only. */
const plainTokens = new Uint32Array(MAX_DELTA_TOKENS);

/** A sequence whose worker is gone looks for a worker again after so long. */
export const SEARCH_PAUSE_MS = 250;
/** After a stop string the worker has so long to tell its usage before the answer ends without it ... */
const STOP_GRACE_MS = 250;
/** Hears about a sequence. Called inside plane callbacks: must not throw. */
export interface SequenceOwner {
  /** Holds back the engine's credit while true. */
  readonly paused: boolean;
  /** There is text to take, or the sequence has come to its end. Once until the next `deliver`. */
  onChanged(sequence: Sequence): void;
  /** The answer's part is complete: finish and usage are known. */
  onSettled(sequence: Sequence): void;
  /** Its worker is gone, and another one has taken it. */
  onMigrated(migrated: Migrated): void;
  onFailed(sequence: Sequence, error: StatorError): void;
  /** Nothing is open any more; the load is given back. Always the last call. */
  onClosed(sequence: Sequence): void;
}

/** A sequence that is complete has so long to end at its worker before it is killed there. */
const END_LIMIT_MS = 5_000;

/*
 * One sequence on its way through its workers:
 *
 *   offered --accept--> running --finish--> settled --end--> closed
 *    |  ^  ^              |  \--stop string--> stopping --end, or grace--> settled
 *    |  |  |              |
 *    |  |  +- migration --+  the worker is lost or has to go: another one goes on behind the tokens so far
 *    |  |                 |
 *    refused: another     error, deadline --> failed --> closed
 *    worker, 3 times; then failed, or, after a migration, a pause and again
 *
 * A worker is replaced before it has accepted (nothing has been generated), or by a migration.
 */
export class Sequence implements StreamSink, SequenceView {
  readonly plan: SequencePlan;
  cachedTokens = 0;
  /** Why the worker was chosen. */
  why = "";
  /** The worker that the answer began with. */
  workerId: string | undefined;
  firstTokenAt: number | undefined;
  /** The owner's mark: it is in the list of changed sequences. */
  marked = false;

  readonly #services: Services;
  readonly #owner: SequenceOwner;
  readonly #placement: Placement;
  readonly #output: SequenceOutput;
  #call: WorkerCall | undefined;
  #deadline: Deadline | undefined;
  #settled = false;
  #failed = false;
  #closed = false;
  #passingOver = false;

  constructor(plan: SequencePlan, services: Services, owner: SequenceOwner) {
    this.plan = plan;
    this.#services = services;
    this.#owner = owner;
    this.#placement = new Placement(plan, services, owner);
    this.#output = new SequenceOutput(plan, this.#placement.log);
  }

  get index(): number {
    return this.plan.index;
  }

  get completionTokens(): number {
    return this.#output.completionTokens;
  }

  get finish(): AnswerFinish | undefined {
    return this.#output.finish;
  }

  get hasText(): boolean {
    return this.#output.hasText;
  }

  takeText(): string {
    return this.#output.takeText();
  }

  takeScores(): readonly ScoredToken[] | undefined {
    return this.#output.takeScores();
  }

  /** Offers the sequence to a worker. */
  start(): void {
    const call = this.#placement.offer(this);
    if (!(call instanceof WorkerCall)) {
      this.#goOn(call);
      return;
    }
    this.#call = call;
    if (this.#output.completionTokens === 0) {
      this.workerId = call.workerId;
      this.why = call.why;
    }
    const { timeouts } = this.#services;
    this.#schedule(nextCheckMs(call, this.plan.deadlineAt, timeouts, call.lastAt), this.#checkDeadlines);
  }

  /** Ends the sequence without a word: a sibling failed, or the client has gone. */
  kill(): void {
    this.#failed = true;
    this.#call?.cancel("kill");
    this.#close();
  }

  /** Gives the engine the credit that was held back. */
  resume(): void {
    if (!this.#closed) this.#call?.giveCredit();
  }

  onAccept(): void {
    const call = this.#call!;
    if (call.accepted) return;
    call.accepted = true;
    this.#placement.accepted(call);
  }

  onData(message: Uint8Array): void {
    const call = this.#call!;
    if (!call.accepted) this.onAccept(); // whatever came, the worker has begun
    call.arrived(message.length, this.#owner.paused);
    if (this.#failed) return;
    try {
      this.#receive(call, message);
    } catch (thrown) {
      this.#abort(catalogued(thrown));
    }
  }

  onEnd(): void {
    if (this.#failed || this.#output.finish !== undefined) this.#over();
    else this.#end(new StatorError("protocol_error", "The worker ended the stream without saying why."));
  }

  onError(error: StatorError): void {
    if (this.#passingOver) return;
    const call = this.#call!;
    this.#placement.blame(call, error);
    if (this.#failed || this.#output.finish !== undefined) {
      this.#over();
      return;
    }
    if (error.class.migratable && this.#output.isFull) {
      // All that was asked for is here; the worker went before it could say so.
      this.#output.end("length");
      this.#owner.onChanged(this);
      this.#over();
      return;
    }
    const next = this.#placement.afterError(call, error, this.#output.completionTokens);
    this.#release();
    this.#goOn(next);
  }

  #receive(call: WorkerCall, message: Uint8Array): void {
    const output = this.#output;
    const plain = readPlainDelta(message, plainTokens);
    if (plain >= 0) {
      if (plain === 0 || output.finish !== undefined) return;
      output.take(plainTokens, plain, undefined);
      this.#taken(call, plain);
      return;
    }
    const { tokens, logprobs, finish } = decodeTokenDelta(message);
    if (output.finish === undefined && tokens.length > 0) {
      output.take(tokens, tokens.length, logprobs);
      this.#taken(call, tokens.length);
    }
    if (finish === undefined) return;
    if (output.finish === undefined) {
      if (finish.reason === "abort") throw new StatorError("engine_error", "The worker gave the request up.");
      output.end(finish.reason);
      this.#owner.onChanged(this);
    }
    this.#settle(finish);
  }

  #taken(call: WorkerCall, count: number): void {
    const now = performance.now();
    call.tokensArrived(count, now);
    this.firstTokenAt ??= now;
    if (this.#output.finish !== undefined) {
      // A stop string: the text is complete now, the engine need not go on.
      this.#schedule(STOP_GRACE_MS, this.#onGraceOver);
      call.cancel("stop");
    }
    if (this.#output.hasText || this.#output.finish !== undefined) this.#owner.onChanged(this);
  }

  /** Without a worker. */
  #goOn(next: Next): void {
    if (next === "offer") this.start();
    else if (next === "pause") this.#schedule(SEARCH_PAUSE_MS, this.#startAgain);
    else this.#end(next);
  }

  readonly #startAgain = (): void => this.start();

  #settle(finish: Finish | undefined): void {
    if (this.#settled) return;
    this.#settled = true;
    // Of the worker's usage only this is not known here; it is not believed more than it can be.
    if (finish !== undefined) this.cachedTokens = Math.min(finish.usage.cachedTokens, this.plan.request.tokens.length);
    this.#call?.counted(this.cachedTokens);
    this.#owner.onSettled(this);
    this.#schedule(END_LIMIT_MS, this.#onEndOverdue);
  }

  /** Fails and drops what the worker still does. */
  #abort(error: StatorError): void {
    this.#fail(error);
    this.#call?.cancel("kill");
    this.#close();
  }

  /** Fails; nothing is open any more. */
  #end(error: StatorError): void {
    this.#fail(error);
    this.#close();
  }

  /** The stream is over and the text was complete, or somebody else knows of the failure. */
  #over(): void {
    if (!this.#failed) this.#settle(undefined);
    this.#close();
  }

  #fail(error: StatorError): void {
    if (this.#failed) return;
    this.#failed = true;
    this.#owner.onFailed(this, error);
  }

  #release(): void {
    this.#deadline?.cancel();
    this.#deadline = undefined;
    this.#call?.release();
    this.#call = undefined;
  }

  #close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#release();
    this.#owner.onClosed(this);
  }

  #schedule(delayMs: number, callback: () => void): void {
    this.#deadline?.cancel();
    this.#deadline = this.#services.wheel.schedule(Math.max(1, delayMs), callback);
  }

  /** Runs at the earliest time at which a deadline may be over, not once per token. */
  readonly #checkDeadlines = (): void => {
    const { deadlineAt } = this.plan;
    const { timeouts } = this.#services;
    const call = this.#call!;
    const now = performance.now();
    if (now < deadlineAt && isSilent(call, timeouts, now) && this.#placement.afterSilence(call)) {
      this.#passOver(call);
      return;
    }
    // While the reader holds the engine up, the engine owes nothing.
    if (call.heldUp) call.lastAt = now;
    const error = overdue(call, deadlineAt, timeouts, now);
    if (error !== undefined) this.#abort(error);
    else this.#schedule(nextCheckMs(call, deadlineAt, timeouts, now), this.#checkDeadlines);
  };

  /** The worker is silent: it hangs, or the way to it does. Leaves it for another one. */
  #passOver(call: WorkerCall): void {
    this.#passingOver = true; // the stream's last word comes from inside `cancel`
    call.cancel("kill");
    this.#passingOver = false;
    this.#release();
    this.start();
  }

  readonly #onEndOverdue = (): void => this.kill();

  readonly #onGraceOver = (): void => {
    this.#settle(undefined);
    this.#services.flushQueue.flush();
  };
}

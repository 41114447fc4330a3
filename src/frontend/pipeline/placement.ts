import type { StatorError } from "../../protocol/errors.ts";
import type { StreamSink } from "../../runtime/request-plane/plane.ts";
import type { ServedModel } from "../models/served-model.ts";
import { asClientSees } from "../models/worker-error.ts";
import { catalogued } from "./catalogued.ts";
import type { Migrated, MigrationFailure, MigrationStart } from "./migrated.ts";
import { Migration } from "./migration.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import type { Services } from "./services.ts";
import type { TokenLog } from "./token-log.ts";
import { WorkerCall } from "./worker-call.ts";

/** Workers that one sequence is offered to in a row before it gives up, or, when its worker is gone, pauses. */
const MAX_OFFERS = 3;

/** What becomes of a sequence without a worker: it is offered at once or after a pause, or it has failed. */
export type Next = "offer" | "pause" | StatorError;

export interface PlacementOwner {
  /** The worker is gone, and another one has taken the sequence. */
  onMigrated(migrated: Migrated): void;
}

/**
 * With which worker a sequence runs: the first one that takes it, and another one when that is lost or has to go. Knows
 * nothing of its text.
 */
export class Placement {
  readonly #plan: SequencePlan;
  readonly #services: Services;
  readonly #owner: PlacementOwner;
  readonly #migration: Migration;
  #calls = 0;
  #offers = 0;
  #excluded: Set<string> | undefined;
  /** Its worker is gone and nobody has taken it yet: until when it may wait, and what the client hears after that. */
  #moving: (MigrationStart & { readonly until: number; readonly error: StatorError }) | undefined;

  constructor(plan: SequencePlan, services: Services, owner: PlacementOwner) {
    this.#plan = plan;
    this.#services = services;
    this.#owner = owner;
    this.#migration = new Migration(plan, services.migration);
  }

  /** Has to hear of every token. */
  get log(): TokenLog | undefined {
    return this.#migration.log;
  }

  /** The next call, or what becomes of the sequence when there is no worker. */
  offer(sink: StreamSink): WorkerCall | Next {
    const { requestId } = this.#plan;
    this.#calls++;
    this.#offers++;
    const terms = {
      model: this.#model(),
      requestId: this.#calls === 1 ? requestId : `${requestId}.${this.#calls}`,
      generated: this.#migration.generated,
      exclude: this.#excluded,
    };
    try {
      return new WorkerCall(this.#plan, terms, this.#services, sink);
    } catch (thrown) {
      return this.#afterPause() ?? catalogued(thrown);
    }
  }

  /** The worker has begun with it. */
  accepted(call: WorkerCall): void {
    this.#offers = 0;
    if (this.#moving === undefined) return;
    const { type, from, reason, generated } = this.#moving;
    this.#moving = undefined;
    const migrated = { type, from, to: call.workerId, reason, generated };
    this.#services.metrics.migrated(type);
    this.#services.logger.info({ requestId: this.#plan.requestId, ...migrated }, "sequence migrated");
    this.#owner.onMigrated(migrated);
  }

  /** The call ended with an error: new requests avoid a worker that is not there. */
  blame({ record }: WorkerCall, error: StatorError): void {
    this.#model().callFailed(record, error);
  }

  /** What becomes of the sequence after that error. `completionTokens`: tokens so far. */
  afterError(call: WorkerCall, error: StatorError, completionTokens: number): Next {
    const shown = asClientSees(error, call.workerId);
    if (!error.class.migratable && !this.#isPassedOn(call, error)) return this.#failed(call, shown);
    if (call.accepted) return this.#leave(call, error, shown, completionTokens);
    return this.#mayAskAnother(call) ? "offer" : (this.#afterPause() ?? shown);
  }

  /** The worker neither takes nor refuses the call. True = another one may be asked. */
  afterSilence(call: WorkerCall): boolean {
    this.#model().workerFailed(call.record, "silent");
    return this.#mayAskAnother(call);
  }

  /**
   * A request that has waited for a slot in vain is told so, and its client may send it again. Half an answer cannot be sent
   * again: that sequence goes on to wait elsewhere.
   */
  #isPassedOn({ tokens }: WorkerCall, { code }: StatorError): boolean {
    return code === "queue_timeout" && this.#migration.hasMoved && tokens === 0;
  }

  /** The worker lives, and the sequence ends with its error. */
  #failed(call: WorkerCall, error: StatorError): StatorError {
    if (this.#migration.hasMoved && call.tokens === 0) this.#count("not_resumed");
    return error;
  }

  #leave(call: WorkerCall, error: StatorError, shown: StatorError, completionTokens: number): Next {
    const obstacle = this.#migration.obstacle(completionTokens);
    if (obstacle !== undefined) {
      this.#count(obstacle);
      return shown;
    }
    call.counted(0);
    this.#excluded = new Set([call.workerId]);
    this.#moving = {
      ...this.#migration.begin(call.workerId, error.code, completionTokens),
      until: Math.min(performance.now() + this.#services.timeouts.firstTokenMs, this.#plan.deadlineAt),
      error: shown,
    };
    return "offer";
  }

  /** Nobody takes it now. Undefined = it has not left a worker: the error at hand is its end. */
  #afterPause(): Next | undefined {
    if (this.#moving === undefined) return undefined;
    if (performance.now() >= this.#moving.until) {
      this.#count("no_worker");
      return this.#moving.error;
    }
    // Then everybody may be asked again, also the one that was lost: it may be back.
    this.#offers = 0;
    this.#excluded = undefined;
    return "pause";
  }

  #mayAskAnother({ workerId }: WorkerCall): boolean {
    const { wantedWorkerId, deadlineAt } = this.#plan;
    if (this.#offers >= MAX_OFFERS || wantedWorkerId !== undefined || performance.now() >= deadlineAt) return false;
    this.#excluded ??= new Set();
    this.#excluded.add(workerId);
    return this.#model()
      .workerIds()
      .some((id) => !this.#excluded!.has(id));
  }

  /** A model whose last worker left is made anew with its next one. */
  #model(): ServedModel {
    const { model, request } = this.#plan;
    const now = this.#services.catalog.lookup(request.model);
    return now?.digest === model.digest ? now : model;
  }

  #count(failure: MigrationFailure): void {
    if (failure !== "off") this.#services.metrics.migrationFailed(failure);
  }
}

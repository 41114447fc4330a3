import { encodeGenerateRequest } from "../../protocol/codec.ts";
import { calledEndpoint, codecOfEndpoint, type WorkerRecord, workerEndpoints } from "../../protocol/instance.ts";
import type { Selection } from "../../router/select/router.ts";
import type { CancelKind, ClientStream, StreamSink } from "../../runtime/request-plane/plane.ts";
import type { WorkerMetrics } from "../frontend-metrics.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import type { Services } from "./services.ts";

/** What differs from worker to worker. */
export interface CallTerms {
  readonly model: ServedModel;
  /** Unique per call. */
  readonly requestId: string;
  /** Tokens that other workers have generated. */
  readonly generated: Uint32Array | undefined;
  readonly exclude: ReadonlySet<string> | undefined;
}

/** A sequence with one worker: the stream, and the load that is booked for it until `release`. */
export class WorkerCall {
  /** The worker as discovery showed it when it was chosen. */
  readonly record: WorkerRecord | undefined;
  /** The worker has taken it, or is about to make tokens. */
  accepted = false;
  /** Tokens that came from this worker. */
  tokens = 0;
  /** When something came last, or the worker was last held up by us. */
  lastAt: number;
  readonly #selection: Selection;
  readonly #metrics: WorkerMetrics;
  readonly #promptTokens: number;
  readonly #stream: ClientStream;
  #withheld = 0;
  #released = false;

  /** Chooses a worker, books its load and opens the stream. Throws when there is no worker. */
  constructor(plan: SequencePlan, terms: CallTerms, { router, plane, metrics }: Services, sink: StreamSink) {
    const { request, wantedWorkerId, traceparent } = plan;
    const { model, requestId, generated, exclude } = terms;
    this.#promptTokens = request.tokens.length;
    this.#selection = router.select(model.candidates(wantedWorkerId, exclude), {
      model: request.model,
      promptTokens: this.#promptTokens + (generated?.length ?? 0),
      ...(wantedWorkerId === undefined ? {} : { workerId: wantedWorkerId }),
      ...(exclude === undefined ? {} : { exclude }),
    });
    this.#metrics = metrics.worker(request.model, this.workerId);
    this.#metrics.started();
    this.lastAt = performance.now();
    const timeoutMs = Math.max(1, Math.ceil(plan.deadlineAt - this.lastAt));
    const body = { ...request, requestId, timeoutMs, ...(generated === undefined ? {} : { generated }) };
    // The catalog may have lost the worker in between; an address that nobody has is then refused as unreachable.
    this.record = model.worker(this.workerId);
    this.#stream = plane.open(
      this.record?.address ?? "",
      {
        endpoint: this.record ? calledEndpoint(this.record, workerEndpoints.generate) : workerEndpoints.generate,
        requestId,
        body: encodeGenerateRequest(body, this.record && codecOfEndpoint(this.record, workerEndpoints.generate)),
        timeoutMs,
        ...(traceparent === undefined ? {} : { traceparent }),
      },
      sink,
    );
  }

  get workerId(): string {
    return this.#selection.workerId;
  }

  /** Why this worker. */
  get why(): string {
    return this.#selection.why;
  }

  /** Credit is held back: the worker owes nothing meanwhile. */
  get heldUp(): boolean {
    return this.#withheld > 0;
  }

  /** A message of so many bytes came. Its credit goes back at once, unless the reader is too far behind. */
  arrived(bytes: number, paused: boolean): void {
    if (paused) this.#withheld += bytes;
    else this.#stream.consumed(bytes);
  }

  tokensArrived(count: number, now: number): void {
    if (this.tokens === 0) this.#metrics.firstToken(now - this.lastAt);
    else this.#metrics.tokensArrived(now - this.lastAt, count);
    this.tokens += count;
    this.lastAt = now;
  }

  /** Gives the credit that was held back. */
  giveCredit(): void {
    if (this.#withheld === 0) return;
    const bytes = this.#withheld;
    this.#withheld = 0;
    this.lastAt = performance.now();
    this.#stream.consumed(bytes);
  }

  cancel(kind: CancelKind): void {
    this.#stream.cancel(kind);
  }

  /** The worker's part of the sequence is over, well or by its loss: its tokens count. */
  counted(cachedTokens: number): void {
    this.#metrics.finished({ promptTokens: this.#promptTokens, completionTokens: this.tokens, cachedTokens });
  }

  /** Gives the load back. Idempotent. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#selection.load.release();
    this.#metrics.ended();
  }
}

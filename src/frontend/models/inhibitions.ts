import type { Logger } from "pino";
import { type ErrorCode, StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, type WorkerRecord, workerEndpoints } from "../../protocol/instance.ts";
import { Backoff } from "../../runtime/lifecycle/backoff.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { callUnary } from "../../runtime/request-plane/call-unary.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";

/** `silent`: took no call in time. `unreachable`: no connection, or none of mutual trust. `lost`: the connection broke under running streams. */
export type InhibitionReason = "silent" | "unreachable" | "lost";

export interface InhibitionTimes {
  /** From the failure to the first probe. Default 250 ms. */
  readonly firstProbeMs?: number;
  /** Longest pause between two probes. Default 2 s. */
  readonly maxProbeMs?: number;
  /** A probe that takes longer has failed. Default 1 s. */
  readonly probeTimeoutMs?: number;
}

/** Errors of a call that speak against its worker, and not against the request. */
const reasons: Partial<Record<ErrorCode, InhibitionReason>> = {
  worker_unreachable: "unreachable",
  peer_authentication_failed: "unreachable",
  worker_lost: "lost",
};

/** Errors of a call that the worker has not answered. */
const absent: ReadonlySet<string> = new Set([...Object.keys(reasons), "deadline_exceeded", "client_closed"]);

/** Undefined = the next call may well succeed. */
export function inhibitionReason({ code }: StatorError): InhibitionReason | undefined {
  return reasons[code];
}

interface Inhibition {
  readonly record: WorkerRecord;
  readonly reason: InhibitionReason;
  readonly backoff: Backoff;
  timer: NodeJS.Timeout | undefined;
}

/**
 * Workers that discovery still shows but that failed a call: new requests avoid them while another worker is there. A
 * probe of the frontend's own (the `status` endpoint), never a client's request, finds out when they are back. A worker
 * that discovery removes or shows with another epoch or address starts with a clean slate.
 */
export class Inhibitions {
  readonly #plane: RequestPlaneClient;
  readonly #logger: Logger;
  readonly #times: Required<InhibitionTimes>;
  readonly #inhibited = new Map<string, Inhibition>();
  readonly #over = new AbortController();

  constructor(plane: RequestPlaneClient, logger: Logger, times: InhibitionTimes = {}) {
    this.#plane = plane;
    this.#logger = logger;
    this.#times = { firstProbeMs: 250, maxProbeMs: 2_000, probeTimeoutMs: 1_000, ...times };
  }

  get size(): number {
    return this.#inhibited.size;
  }

  reasonOf(workerId: string): InhibitionReason | undefined {
    return this.#inhibited.get(workerId)?.reason;
  }

  /** What an operator should know, one line each. Without addresses: clients may read it. */
  problems(): readonly string[] {
    return [...this.#inhibited.values()].map(
      ({ record, reason }) => `worker ${record.workerId} is avoided: ${reason}; the log says why`,
    );
  }

  /** The first reason counts until the worker is back. `error`: of the call that failed, for the log. */
  inhibit(record: WorkerRecord, reason: InhibitionReason, error?: StatorError): void {
    const { workerId, address } = record;
    if (this.#over.signal.aborted || this.#inhibited.has(workerId)) return;
    const cause = error === undefined ? {} : { error: error.code, cause: error.message };
    this.#logger.warn({ workerId, address, reason, ...cause }, "worker inhibited");
    const { firstProbeMs, maxProbeMs } = this.#times;
    const backoff = new Backoff({ initialMs: firstProbeMs, maxMs: maxProbeMs });
    const inhibition: Inhibition = { record, reason, backoff, timer: undefined };
    this.#inhibited.set(workerId, inhibition);
    this.#probeLater(inhibition);
  }

  /** Those of `candidates` that should be tried: all of them when none without inhibition and not in `exclude` is left. */
  preferred(candidates: readonly string[], exclude?: ReadonlySet<string>): readonly string[] {
    if (this.#inhibited.size === 0) return candidates;
    const free = candidates.filter((id) => !this.#inhibited.has(id));
    return free.some((id) => !exclude?.has(id)) ? free : candidates;
  }

  /** What discovery says now: another epoch or address, or no such worker, ends an inhibition. */
  discovered(workerId: string, record: WorkerRecord | undefined): void {
    const inhibition = this.#inhibited.get(workerId);
    if (inhibition === undefined) return;
    const { epoch, address } = inhibition.record;
    if (record?.epoch === epoch && record.address === address) return;
    this.#lift(inhibition, "discovery");
  }

  close(): void {
    this.#over.abort(new StatorError("client_closed", "The frontend was closed."));
    for (const { timer } of this.#inhibited.values()) clearTimeout(timer);
    this.#inhibited.clear();
  }

  #probeLater(inhibition: Inhibition): void {
    inhibition.timer = setTimeout(() => void this.#probe(inhibition), inhibition.backoff.nextDelayMs()).unref();
  }

  async #probe(inhibition: Inhibition): Promise<void> {
    const { address, workerId } = inhibition.record;
    const call = {
      endpoint: calledEndpoint(inhibition.record, workerEndpoints.status),
      requestId: uniqueId("probe-"),
      body: new Uint8Array(0),
      timeoutMs: this.#times.probeTimeoutMs,
    };
    // A refusal is an answer, too: the worker is there.
    const answered = await callUnary(this.#plane, address, call, this.#over.signal).then(
      () => true,
      (error: unknown) => error instanceof StatorError && !absent.has(error.code),
    );
    if (this.#inhibited.get(workerId) !== inhibition) return; // lifted meanwhile
    if (answered) this.#lift(inhibition, "probe");
    else this.#probeLater(inhibition);
  }

  #lift(inhibition: Inhibition, by: "probe" | "discovery"): void {
    const { workerId } = inhibition.record;
    clearTimeout(inhibition.timer);
    this.#inhibited.delete(workerId);
    this.#logger.info({ workerId, reason: inhibition.reason, by }, "worker no longer inhibited");
  }
}

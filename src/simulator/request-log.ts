import type { RequestTimes } from "../protocol/slo.ts";
import type { TraceRequest } from "../traces/trace-request.ts";

export const outcomes = { incomplete: 0, completed: 1, rejected: 2, failed: 3 } as const;
/** Their names in output, by number. */
export const outcomeNames = ["incomplete", "completed", "rejected", "failed"] as const;
export type Outcome = (typeof outcomes)[keyof typeof outcomes];

/** What happened to each request of a replay, by its number. Times are virtual ms; NaN while it has not happened. */
export class RequestLog {
  readonly requests: readonly TraceRequest[];
  readonly dispatchedMs: Float64Array;
  readonly firstTokenMs: Float64Array;
  readonly secondTokenMs: Float64Array;
  readonly lastTokenMs: Float64Array;
  readonly endedMs: Float64Array;
  /** Tokens given. */
  readonly given: Int32Array;
  /** Tokens that the first admission found in a cache. */
  readonly firstCachedTokens: Int32Array;
  /** How often it went on with another worker, because its own was lost. */
  readonly migrations: Uint32Array;
  readonly outcome: Uint8Array;
  readonly #admitted: Uint8Array;
  #gaps = new Float64Array(4096);
  #gapCount = 0;

  constructor(requests: readonly TraceRequest[]) {
    const unknown = () => new Float64Array(requests.length).fill(Number.NaN);
    this.requests = requests;
    this.dispatchedMs = unknown();
    this.firstTokenMs = unknown();
    this.secondTokenMs = unknown();
    this.lastTokenMs = unknown();
    this.endedMs = unknown();
    this.given = new Int32Array(requests.length);
    this.firstCachedTokens = new Int32Array(requests.length);
    this.migrations = new Uint32Array(requests.length);
    this.outcome = new Uint8Array(requests.length);
    this.#admitted = new Uint8Array(requests.length);
  }

  /** The times between tokens of one request, of all requests, in order of the later token. Tokens of one pass are 0 apart. */
  get gaps(): Float64Array {
    return this.#gaps.subarray(0, this.#gapCount);
  }

  get gapCount(): number {
    return this.#gapCount;
  }

  /** From when it was sent. NaN without a token. */
  ttftMs(id: number): number {
    return this.firstTokenMs[id]! - this.dispatchedMs[id]!;
  }

  /** From when it was sent to its end. NaN before that. */
  e2eMs(id: number): number {
    return this.endedMs[id]! - this.dispatchedMs[id]!;
  }

  /** Mean time per token after the first; undefined for an answer of one token. */
  tpotMs(id: number): number | undefined {
    const more = this.given[id]! - 1;
    return more < 1 ? undefined : (this.lastTokenMs[id]! - this.firstTokenMs[id]!) / more;
  }

  /** Of a completed request. */
  times(id: number): RequestTimes {
    return { ttftMs: this.ttftMs(id), tpotMs: this.tpotMs(id), e2eMs: this.e2eMs(id) };
  }

  tokens(id: number, count: number, nowMs: number): void {
    const before = this.given[id]!;
    this.given[id] = before + count;
    if (before === 0) this.firstTokenMs[id] = nowMs;
    else this.#gap(nowMs - this.lastTokenMs[id]!);
    for (let more = 1; more < count; more++) this.#gap(0);
    if (before < 2 && before + count >= 2) this.secondTokenMs[id] = nowMs;
    this.lastTokenMs[id] = nowMs;
  }

  /** Left a waiting line; what counts is the first time. */
  admitted(id: number, cachedTokens: number): void {
    if (this.#admitted[id] === 1) return;
    this.#admitted[id] = 1;
    this.firstCachedTokens[id] = cachedTokens;
  }

  end(id: number, outcome: Outcome, nowMs: number): void {
    this.outcome[id] = outcome;
    this.endedMs[id] = nowMs;
  }

  /** Grows with the tokens that came, not with those that a trace asks for: much of it may be rejected. */
  #gap(ms: number): void {
    if (this.#gapCount === this.#gaps.length) {
      const larger = new Float64Array(this.#gaps.length * 2);
      larger.set(this.#gaps);
      this.#gaps = larger;
    }
    this.#gaps[this.#gapCount++] = ms;
  }
}

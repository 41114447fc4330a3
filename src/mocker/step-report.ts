import type { Admission, StepResult } from "./engine.ts";
import type { ForwardPassMetrics } from "./forward-pass.ts";
import type { KvEvent } from "./kv-events.ts";

/** The one result object of an engine, filled anew in each step. */
export class StepReport implements StepResult {
  tokenIds = new Int32Array(64);
  tokenCounts = new Int32Array(64);
  tokenRequests = 0;
  readonly finished: number[] = [];
  readonly rejected: number[] = [];
  readonly admitted: Admission[] = [];
  readonly preempted: number[] = [];
  readonly kvEvents: KvEvent[] = [];
  readonly metrics: ForwardPassMetrics[] = [];

  clear(): void {
    this.tokenRequests = 0;
    empty(this.finished);
    empty(this.rejected);
    empty(this.admitted);
    empty(this.preempted);
    empty(this.kvEvents);
    empty(this.metrics);
  }

  tokens(id: number, count: number): void {
    if (this.tokenRequests === this.tokenIds.length) {
      this.tokenIds = doubled(this.tokenIds);
      this.tokenCounts = doubled(this.tokenCounts);
    }
    this.tokenIds[this.tokenRequests] = id;
    this.tokenCounts[this.tokenRequests] = count;
    this.tokenRequests += 1;
  }
}

function doubled(array: Int32Array<ArrayBuffer>): Int32Array<ArrayBuffer> {
  const larger = new Int32Array(array.length * 2);
  larger.set(array);
  return larger;
}

/** Most lists are empty in most steps, and setting a length is not free even then. */
function empty(list: unknown[]): void {
  if (list.length > 0) list.length = 0;
}

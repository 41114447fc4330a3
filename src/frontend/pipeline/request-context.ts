import type { Context } from "@opentelemetry/api";
import type { StatorError } from "../../protocol/errors.ts";

/** One client request on its way through the pipeline. */
export interface RequestContext {
  /** Ours, unique; the ids in bodies are made of it. */
  readonly id: string;
  /** `performance.now()` at arrival and at the end of the patience. */
  readonly arrivedAt: number;
  readonly deadlineAt: number;
  /** Aborts when the client has gone or the deadline is over; the reason is a StatorError. */
  readonly signal: AbortSignal;
  /** The client wants this worker and no other. */
  readonly wantedWorkerId: string | undefined;
  /** Parent of the spans made on the way. */
  readonly trace: Context;
  readonly record: RequestRecord;
}

/** What metrics and the log line say at the end. Filled in on the way. */
export interface RequestRecord {
  endpoint: string;
  /** As served; undefined when the request named no model that exists. */
  model: string | undefined;
  stream: boolean;
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  firstTokenAt: number | undefined;
  workerId: string | undefined;
  error: StatorError | undefined;
}

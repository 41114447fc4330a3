import { StatorError } from "../../protocol/errors.ts";
import type { TimeoutOptions } from "../options.ts";
import type { WorkerCall } from "./worker-call.ts";

/** The deadline that is over, as an error. */
export function overdue(
  call: WorkerCall,
  deadlineAt: number,
  limits: TimeoutOptions,
  now: number,
): StatorError | undefined {
  if (now >= deadlineAt) return new StatorError("deadline_exceeded", "The request's time is over.");
  const limitMs = silenceLimit(call, limits);
  if (now - call.lastAt < limitMs) return undefined;
  return call.tokens === 0
    ? new StatorError("first_token_timeout", `No first token within ${limitMs} ms.`)
    : new StatorError("inter_token_timeout", `No next token within ${limitMs} ms.`);
}

/** The worker has neither taken nor refused the call in time. */
export function isSilent(call: WorkerCall, { acceptMs }: TimeoutOptions, now: number): boolean {
  return !call.accepted && now - call.lastAt >= acceptMs;
}

/** Milliseconds until one of the deadlines may be over. */
export function nextCheckMs(call: WorkerCall, deadlineAt: number, limits: TimeoutOptions, now: number): number {
  const { acceptMs } = limits;
  const silentMs = call.lastAt + silenceLimit(call, limits) - now;
  // Silent, and nobody else was there: another worker may join.
  const acceptanceMs = call.accepted ? silentMs : Math.max(call.lastAt + acceptMs - now, acceptMs / 4);
  return Math.min(silentMs, deadlineAt - now, acceptanceMs);
}

function silenceLimit(call: WorkerCall, { firstTokenMs, interTokenMs }: TimeoutOptions): number {
  return call.tokens === 0 ? firstTokenMs : interTokenMs;
}

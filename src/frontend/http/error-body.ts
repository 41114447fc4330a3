import { errorObject, type StatorError } from "../../protocol/errors.ts";

/** What a client gets as JSON. */
export function errorBody(error: StatorError): string {
  return JSON.stringify({ error: errorObject(error) });
}

export function errorHeaders(error: StatorError): Record<string, string> {
  const { retryAfterSeconds } = error;
  const seconds = retryAfterSeconds ?? (error.class.status === 502 || error.class.status === 503 ? 1 : undefined);
  return seconds === undefined ? {} : { "retry-after": String(Math.max(1, Math.ceil(seconds))) };
}

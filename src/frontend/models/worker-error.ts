import { StatorError } from "../../protocol/errors.ts";

/** A worker's error as a client sees it: worker ids are public, their addresses are not. */
export function asClientSees(error: StatorError, workerId: string): StatorError {
  const worker = `The worker ${workerId}`;
  switch (error.code) {
    case "draining":
      // The worker drains, not this server: to the client that is a model without a free worker.
      return new StatorError("not_ready", `${worker} is shutting down.`, { retryAfterSeconds: 1, cause: error });
    case "worker_unreachable":
      return new StatorError(error.code, `${worker} cannot be reached.`, { cause: error });
    case "worker_lost":
      return new StatorError(error.code, `${worker} was lost.`, { cause: error });
    case "deadline_exceeded":
      return new StatorError(error.code, "The request's time is over.", { cause: error });
    default:
      return error;
  }
}

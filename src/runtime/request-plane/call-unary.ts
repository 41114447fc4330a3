import { StatorError } from "../../protocol/errors.ts";
import type { OutgoingCall, RequestPlaneClient } from "./plane.ts";

/** Largest answer of a unary call; a token table of a large vocabulary is about 3 MB. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

/**
 * One body out, one body back. Rejects with a StatorError; `signal` kills the call. `acceptTimeoutMs`: a callee that has
 * not taken the call by then is `worker_unreachable`, so that another one can be asked; default: the call's own timeout.
 */
export function callUnary(
  plane: RequestPlaneClient,
  address: string,
  call: OutgoingCall,
  signal: AbortSignal,
  acceptTimeoutMs?: number,
): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(abortError(signal));
      return;
    }
    const parts: Uint8Array[] = [];
    let total = 0;
    let silent = false;
    const over = (): void => {
      clearTimeout(acceptTimer);
      signal.removeEventListener("abort", onAbort);
    };
    const stream = plane.open(address, call, {
      onAccept: () => clearTimeout(acceptTimer),
      onData: (message) => {
        clearTimeout(acceptTimer);
        total += message.length;
        if (total > MAX_ANSWER_BYTES) {
          stream.cancel("kill");
          return;
        }
        parts.push(new Uint8Array(message)); // a copy, which `slice` of a Buffer would not be
        stream.consumed(message.length);
      },
      onEnd: () => {
        over();
        resolve(parts.length === 1 ? parts[0]! : Buffer.concat(parts));
      },
      onError: (error) => {
        over();
        reject(
          total > MAX_ANSWER_BYTES
            ? new StatorError("protocol_error", `The answer of ${call.endpoint} is over ${MAX_ANSWER_BYTES} bytes.`)
            : signal.aborted
              ? abortError(signal)
              : silent
                ? new StatorError("worker_unreachable", `The worker took no call within ${acceptTimeoutMs} ms.`)
                : error,
        );
      },
    });
    const onAbort = (): void => stream.cancel("kill");
    const acceptTimer =
      acceptTimeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            silent = true;
            stream.cancel("kill");
          }, acceptTimeoutMs);
    signal.addEventListener("abort", onAbort, { once: true });
  });
}

function abortError({ reason }: AbortSignal): StatorError {
  if (reason instanceof StatorError) return reason;
  const isTimeout = reason instanceof DOMException && reason.name === "TimeoutError";
  return isTimeout
    ? new StatorError("deadline_exceeded", "The call took too long.", { cause: reason })
    : new StatorError("client_closed", "The call was cancelled.", { cause: reason });
}

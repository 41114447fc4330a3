import { STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import { StatorError } from "../../protocol/errors.ts";
import type { TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { errorBody } from "./error-body.ts";

/** How long a client that sent broken HTTP may take to read the answer. */
const LINGER_MS = 1_000;

/** What node's HTTP parser could not make a request of: answers by hand where nothing was answered yet, and closes. */
export function answerBrokenHttp(
  cause: Error & { readonly code?: string; readonly reason?: string },
  socket: Duplex & { readonly bytesWritten?: number; readonly _httpMessage?: { readonly headersSent: boolean } | null },
  wheel: TimerWheel,
  onError: (error: StatorError) => void,
): void {
  // A response has begun on this connection: more bytes would only garble it. (`_httpMessage` is node's own mark of the
  // response that has the connection; there is no public one.)
  if (!socket.writable || cause.code === "ECONNRESET" || socket._httpMessage?.headersSent === true) {
    socket.destroy();
    return;
  }
  const error = brokenHttpError(cause);
  onError(error);
  const body = errorBody(error);
  const { status } = error.class;
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nx-request-id: ${uniqueId("", 24)}\r\n\r\n${body}`,
  );
  wheel.schedule(LINGER_MS, () => socket.destroy());
}

function brokenHttpError(cause: Error & { readonly code?: string; readonly reason?: string }): StatorError {
  switch (cause.code) {
    case "HPE_HEADER_OVERFLOW":
      return new StatorError("headers_too_large", "The headers are larger than http.maxHeaderBytes.", { cause });
    case "ERR_HTTP_REQUEST_TIMEOUT":
      return new StatorError("request_timeout", "The request was not complete in time.", { cause });
    case "HPE_CHUNK_EXTENSIONS_OVERFLOW":
      return new StatorError("payload_too_large", "The chunk extensions of the body are too large.", { cause });
    default:
      return new StatorError("invalid_header", `The request is not valid HTTP: ${cause.reason ?? "parse error"}.`, {
        cause,
      });
  }
}

import type { IncomingMessage } from "node:http";
import { StatorError } from "../../protocol/errors.ts";

/** Headers that must not stand twice: whoever takes the other one sees another request. */
const single = new Set(["content-type", "content-length", "content-encoding", "host", "authorization"]);
const workerIdPattern = /^[A-Za-z0-9._:/@-]{1,256}$/;

/** Refuses headers that can be read in two ways. */
export function checkHeaders(request: IncomingMessage): void {
  const { rawHeaders, headers, httpVersion } = request;
  let seen: Set<string> | undefined;
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]!.toLowerCase();
    if (!single.has(name)) continue;
    seen ??= new Set();
    if (seen.has(name)) {
      throw new StatorError("invalid_header", `The header ${name} stands more than once.`, { param: name });
    }
    seen.add(name);
  }
  if (headers.host === undefined && httpVersion === "1.1") {
    throw new StatorError("invalid_header", "The header host is missing.", { param: "host" });
  }
}

/** x-stator-timeout-ms: it shortens the total time, it never lengthens it. */
export function timeoutFrom(request: IncomingMessage, totalMs: number): number {
  const name = "x-stator-timeout-ms";
  const value = request.headers[name];
  if (value === undefined) return totalMs;
  if (typeof value !== "string" || !/^[1-9]\d{0,11}$/.test(value)) {
    throw new StatorError("invalid_header", `${name} must be a positive integer (milliseconds).`, { param: name });
  }
  return Math.min(Number(value), totalMs);
}

/** x-stator-worker-id: the worker that the client wants. */
export function workerIdFrom(request: IncomingMessage): string | undefined {
  const name = "x-stator-worker-id";
  const value = request.headers[name];
  if (value === undefined) return undefined;
  if (typeof value !== "string" || !workerIdPattern.test(value)) {
    throw new StatorError("invalid_header", `${name} must be one worker id.`, { param: name });
  }
  return value;
}

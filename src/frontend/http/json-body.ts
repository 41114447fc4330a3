import { isUtf8 } from "node:buffer";
import type { IncomingMessage } from "node:http";
import { StatorError } from "../../protocol/errors.ts";
import { nestsDeeperThan } from "./nesting.ts";

export interface JsonBody {
  readonly value: unknown;
  /** The text that `value` was parsed from. */
  readonly text: string;
}

export interface BodyLimits {
  readonly maxBodyBytes: number;
  readonly maxNesting: number;
}

/** What the headers alone tell about a body. Throws before any of it is read. */
export function checkBodyHeaders(request: IncomingMessage, { maxBodyBytes }: BodyLimits): void {
  const type = request.headers["content-type"];
  if (type === undefined || !isJsonType(type)) {
    const given = type === undefined ? "missing" : JSON.stringify(type.slice(0, 100));
    throw new StatorError("unsupported_media_type", `Content-Type must be application/json, but it is ${given}.`);
  }
  const encoding = request.headers["content-encoding"];
  if (encoding !== undefined && encoding.toLowerCase() !== "identity") {
    throw new StatorError(
      "unsupported_media_type",
      `Content-Encoding ${JSON.stringify(encoding.slice(0, 100))} is not supported; send the body as it is.`,
    );
  }
  const length = request.headers["content-length"];
  if (length !== undefined && Number(length) > maxBodyBytes) throw tooLarge(maxBodyBytes, length);
}

/** Reads the body and parses it. It is never repaired: what is not UTF-8 or not JSON is refused. */
export async function readJsonBody(
  request: IncomingMessage,
  limits: BodyLimits,
  signal: AbortSignal,
): Promise<JsonBody> {
  const bytes = await readBytes(request, limits.maxBodyBytes, signal);
  if (!isUtf8(bytes)) throw new StatorError("invalid_encoding", "The body is not valid UTF-8.");
  if (nestsDeeperThan(bytes, limits.maxNesting)) {
    throw new StatorError(
      "invalid_json",
      `The body nests arrays and objects deeper than ${limits.maxNesting} levels (http.maxNesting).`,
    );
  }
  const text = bytes.toString("utf8");
  try {
    return { value: JSON.parse(text), text };
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : "not JSON";
    throw new StatorError("invalid_json", `The body is not valid JSON: ${reason}.`, { cause });
  }
}

function readBytes(request: IncomingMessage, maxBytes: number, signal: AbortSignal): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = [];
    let total = 0;
    const stop = (): void => {
      request.off("data", onData);
      request.off("end", onEnd);
      request.off("close", onClose);
      request.off("error", onClose);
      signal.removeEventListener("abort", onAbort);
    };
    const onData = (part: Buffer): void => {
      total += part.length;
      if (total > maxBytes) {
        stop();
        reject(tooLarge(maxBytes));
        return;
      }
      parts.push(part);
    };
    const onEnd = (): void => {
      stop();
      resolve(parts.length === 1 ? parts[0]! : Buffer.concat(parts, total));
    };
    const onClose = (): void => {
      stop();
      reject(new StatorError("client_closed", "The client closed the connection before the body was complete."));
    };
    const onAbort = (): void => {
      stop();
      reject(signal.reason);
    };
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    signal.addEventListener("abort", onAbort);
    request.on("data", onData);
    request.on("end", onEnd);
    request.on("close", onClose);
    request.on("error", onClose);
  });
}

function isJsonType(header: string): boolean {
  const type = header.split(";", 1)[0]!.trim().toLowerCase();
  return type === "application/json" || /^application\/[a-z0-9.!#$&^_-]+\+json$/.test(type);
}

/** `size`: as the client has announced it. */
function tooLarge(maxBytes: number, size?: string): StatorError {
  const what = size === undefined ? "The body" : `The body of ${size} bytes`;
  return new StatorError("payload_too_large", `${what} is larger than ${maxBytes} bytes (http.maxBodyBytes).`);
}

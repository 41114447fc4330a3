import { Packr, Unpackr } from "msgpackr";
import { StatorError } from "./errors.ts";
import type { EndpointCodec } from "./instance.ts";

/*
 * Values on the wire of an endpoint, in the codec that it advertises.
 *
 *   msgpack   as it is; bytes are bytes
 *   json      bytes are {"$base64":"..."}; for peers and tools that have no msgpack
 */

const BYTES_KEY = "$base64";
const packr = new Packr({ useRecords: false, moreTypes: false });
const unpackr = new Unpackr({ useRecords: false, moreTypes: false, mapsAsObjects: true, int64AsType: "number" });

export function pack(value: unknown): Uint8Array {
  return packr.pack(value);
}

/** Msgpack to a value. `__proto__` keys never reach a prototype: msgpackr renames them. */
export function unpack(bytes: Uint8Array): unknown {
  try {
    return unpackr.unpack(bytes);
  } catch (cause) {
    throw new StatorError("protocol_error", "The peer sent bytes that are not msgpack.", { cause });
  }
}

export function encodeMessage(value: unknown, codec: EndpointCodec): Uint8Array {
  if (codec === "msgpack") return pack(value);
  return Buffer.from(JSON.stringify(value ?? null, replaceBytes));
}

/** Throws `protocol_error` on bytes that are no such message. */
export function decodeMessage(bytes: Uint8Array, codec: EndpointCodec): unknown {
  if (codec === "msgpack") return unpack(bytes);
  try {
    return JSON.parse(utf8.decode(bytes), reviveBytes);
  } catch (cause) {
    if (cause instanceof StatorError) throw cause;
    throw new StatorError("protocol_error", "The peer sent bytes that are not JSON.", { cause });
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

/** `this` is the object that holds the value: JSON.stringify has already called a Buffer's toJSON. */
function replaceBytes(this: unknown, key: string, value: unknown): unknown {
  const original = (this as Record<string, unknown>)[key];
  if (original instanceof Uint8Array) {
    const { buffer, byteOffset, byteLength } = original;
    return { [BYTES_KEY]: Buffer.from(buffer, byteOffset, byteLength).toString("base64") };
  }
  return value;
}

function reviveBytes(this: unknown, key: string, value: unknown): unknown {
  // As an own property it would be harmless here, and a trap wherever the object is copied.
  if (key === "__proto__")
    throw new StatorError("protocol_error", 'The peer sent a message with a "__proto__" member.');
  if (typeof value !== "object" || value === null || !(BYTES_KEY in value)) return value;
  const text = (value as Record<string, unknown>)[BYTES_KEY];
  if (typeof text !== "string" || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) {
    throw new StatorError("protocol_error", `The peer sent a ${BYTES_KEY} member that is not base64.`);
  }
  return new Uint8Array(Buffer.from(text, "base64"));
}

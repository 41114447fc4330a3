import { fromWireError, StatorError, toWireError } from "../../../protocol/errors.ts";
import { pack, unpack } from "../../../protocol/message-codec.ts";
import type { CancelKind, OutgoingCall } from "../plane.ts";
import type { OpenedCall } from "../running-call.ts";
import { CHUNK_BYTES } from "./chunks.ts";

/*
 * All integers are little endian.
 *
 *   frame    | u32 payload bytes | u8 type | u32 stream | payload |
 *
 *   hello    | u32 magic "STAT" | u16 version | u16 flags: 1 has a secret | u32 max open bytes | u32 max data bytes |
 *            | u32 window | u32 max streams | 32 bytes nonce |
 *   proof    | 32 bytes HMAC, see handshake.ts |
 *   open     | u32 timeout ms | u16 a | u16 b | u16 c | endpoint (a) | request id (b) | traceparent (c) | body |
 *   accept   | u32 queue position |
 *   data     | message |
 *   part     | u32 bytes of the whole payload | piece |      of an open or data frame that is too large for one; the last
 *            |                                        |      piece comes in the frame itself
 *   credit   | u32 bytes |
 *   end      | |
 *   error    | msgpack WireError |
 *   cancel   | u8: 0 stop, 1 kill |
 *   ping     | |
 *   pong     | |
 *   goaway   | nothing (draining), or msgpack WireError (closing because of it) |
 *
 *   client                     server
 *     | hello ------------------> |     each side's first frame, at once after the connect
 *     | <------------------ hello |
 *     | proof ------------------> |     only when both have a secret; the server's proof follows the client's
 *     | <------------------ proof |
 *     | open, credit, cancel ---> |     stream ids are the client's
 *     | <- accept, data, end, error
 *     | <---------- ping, pong -> |     stream 0
 *     | <----------------- goaway |     stream 0
 */

export const MAGIC = 0x54415453;
export const PROTOCOL_VERSION = 2;
export const FRAME_HEADER_BYTES = 9;
export const NONCE_BYTES = 32;
export const PROOF_BYTES = 32;
const HELLO_FIXED_BYTES = 24;
export const HELLO_BYTES = HELLO_FIXED_BYTES + NONCE_BYTES;
const FLAG_SECRET = 1;
/** In front of each piece of a message. */
export const PART_HEAD_BYTES = 4;
/** Largest payload of an error or a goaway. */
export const MAX_ERROR_BYTES = 64 * 1024;
/** Endpoint, request id and traceparent together with their lengths. */
export const MAX_OPEN_HEAD_BYTES = 4 * 1024;
const OPEN_FIXED_BYTES = 10;

export const FrameType = {
  hello: 1,
  open: 2,
  accept: 3,
  data: 4,
  credit: 5,
  end: 6,
  error: 7,
  cancel: 8,
  ping: 9,
  pong: 10,
  goaway: 11,
  proof: 12,
  part: 13,
} as const;

/** The limits that a side tells in its hello. */
export interface HelloLimits {
  readonly maxOpenBytes: number;
  readonly maxDataBytes: number;
  readonly windowBytes: number;
  readonly maxStreams: number;
}

export interface Hello extends HelloLimits {
  readonly hasSecret: boolean;
}

/** Largest payload of each frame type; undefined = there is no such type. */
export function payloadLimits(limits: { maxOpenBytes: number; maxDataBytes: number }): readonly (number | undefined)[] {
  const max: (number | undefined)[] = [];
  max[FrameType.hello] = HELLO_BYTES;
  max[FrameType.open] = Math.min(limits.maxOpenBytes + MAX_OPEN_HEAD_BYTES, CHUNK_BYTES);
  max[FrameType.accept] = 4;
  max[FrameType.data] = Math.min(limits.maxDataBytes, CHUNK_BYTES);
  max[FrameType.credit] = 4;
  max[FrameType.end] = 0;
  max[FrameType.error] = MAX_ERROR_BYTES;
  max[FrameType.cancel] = 1;
  max[FrameType.ping] = 0;
  max[FrameType.pong] = 0;
  max[FrameType.goaway] = MAX_ERROR_BYTES;
  max[FrameType.proof] = PROOF_BYTES;
  max[FrameType.part] = PART_HEAD_BYTES + MAX_OPEN_HEAD_BYTES + CHUNK_BYTES;
  return max;
}

/** `nonce`: {@link NONCE_BYTES} random bytes, fresh for each connection. */
export function encodeHello(hello: HelloLimits, nonce: Uint8Array, hasSecret: boolean): Uint8Array {
  const bytes = Buffer.alloc(HELLO_BYTES);
  bytes.writeUInt32LE(MAGIC, 0);
  bytes.writeUInt16LE(PROTOCOL_VERSION, 4);
  bytes.writeUInt16LE(hasSecret ? FLAG_SECRET : 0, 6);
  bytes.writeUInt32LE(hello.maxOpenBytes, 8);
  bytes.writeUInt32LE(hello.maxDataBytes, 12);
  bytes.writeUInt32LE(hello.windowBytes, 16);
  bytes.writeUInt32LE(hello.maxStreams, 20);
  bytes.set(nonce, HELLO_FIXED_BYTES);
  return bytes;
}

export function decodeHello(payload: Uint8Array): Hello {
  const view = viewOf(payload);
  if (payload.length < 6 || view.getUint32(0, true) !== MAGIC) throw malformed("it does not speak Stator's protocol");
  const version = view.getUint16(4, true);
  if (version !== PROTOCOL_VERSION) {
    throw malformed(`it speaks protocol version ${version}, this side speaks ${PROTOCOL_VERSION}`);
  }
  if (payload.length !== HELLO_BYTES) throw malformed("its hello has the wrong size");
  const hello = {
    maxOpenBytes: view.getUint32(8, true),
    maxDataBytes: view.getUint32(12, true),
    windowBytes: view.getUint32(16, true),
    maxStreams: view.getUint32(20, true),
    hasSecret: (view.getUint16(6, true) & FLAG_SECRET) !== 0,
  };
  if (hello.windowBytes === 0) throw malformed("its hello has no window");
  return hello;
}

/** The open frame without the body, which follows it. The caller checks it against {@link MAX_OPEN_HEAD_BYTES}. */
export function encodeOpenHead(call: OutgoingCall, timeoutMs: number): Uint8Array {
  const endpoint = Buffer.from(call.endpoint);
  const requestId = Buffer.from(call.requestId);
  const traceparent = Buffer.from(call.traceparent ?? "");
  const length = OPEN_FIXED_BYTES + endpoint.length + requestId.length + traceparent.length;
  const bytes = Buffer.allocUnsafe(length);
  bytes.writeUInt32LE(Math.min(Math.max(Math.ceil(timeoutMs), 0), 0xffffffff), 0);
  bytes.writeUInt16LE(endpoint.length, 4);
  bytes.writeUInt16LE(requestId.length, 6);
  bytes.writeUInt16LE(traceparent.length, 8);
  let at = OPEN_FIXED_BYTES;
  for (const part of [endpoint, requestId, traceparent]) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

export function decodeOpen(payload: Uint8Array): OpenedCall {
  if (payload.length < OPEN_FIXED_BYTES) throw malformed("an open frame is too short");
  const bytes = Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  let at = OPEN_FIXED_BYTES;
  const next = (lengthAt: number): string => {
    const end = at + bytes.readUInt16LE(lengthAt);
    if (end > bytes.length) throw malformed("an open frame is too short");
    const text = bytes.toString("utf8", at, end);
    at = end;
    return text;
  };
  const endpoint = next(4);
  const requestId = next(6);
  const traceparent = next(8);
  return {
    endpoint,
    requestId,
    body: bytes.subarray(at),
    timeoutMs: bytes.readUInt32LE(0),
    ...(traceparent === "" ? {} : { traceparent }),
  };
}

export function encodeU32(value: number): Uint8Array {
  const bytes = Buffer.allocUnsafe(4);
  bytes.writeUInt32LE(Math.min(value, 0xffffffff));
  return bytes;
}

export function decodeU32(payload: Uint8Array): number {
  if (payload.length !== 4) throw malformed("a number has the wrong size");
  return viewOf(payload).getUint32(0, true);
}

export function encodeCancel(kind: CancelKind): Uint8Array {
  return Uint8Array.of(kind === "kill" ? 1 : 0);
}

export function decodeCancel(payload: Uint8Array): CancelKind {
  if (payload.length !== 1 || payload[0]! > 1) throw malformed("a cancel frame has no known kind");
  return payload[0] === 1 ? "kill" : "stop";
}

export function encodeError(error: StatorError): Uint8Array {
  const wire = toWireError(error);
  const bytes = pack(wire);
  return bytes.length <= MAX_ERROR_BYTES ? bytes : pack({ ...wire, message: wire.message.slice(0, 4096) });
}

export function decodeError(payload: Uint8Array): StatorError {
  return fromWireError(unpack(payload));
}

/** The peer does not keep to the protocol. */
export function malformed(what: string): StatorError {
  return new StatorError("protocol_error", `The peer broke the request-plane protocol: ${what}.`);
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

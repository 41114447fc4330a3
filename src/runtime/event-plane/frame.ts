/*
 * One message of the event plane: the events of one tick of one origin. Integers are little endian.
 *
 *    0    1    2          4           8                  16
 *   +----+----+----------+-----------+------------------+----------------+--------------------------------+
 *   | 1  | 0  | u16 name | u32 count | u64 first        | name of the    | count x ( u32 length | bytes ) |
 *   |    |    | length   |           | sequence         | origin (UTF-8) |                                |
 *   +----+----+----------+-----------+------------------+----------------+--------------------------------+
 *    version  reserved
 *
 * The name holds publisher id, epoch and topic (`originName`). A frame without events is a heartbeat: `first` is the
 * sequence that the next event will have. The ring keeps frames as they are, and a replay consists of the same frames.
 */

const VERSION = 1;
const HEAD_BYTES = 16;
const LENGTH_BYTES = 4;
const TWO_32 = 2 ** 32;
/** Above, a sequence would not be exact as a number. */
const MAX_HIGH = 2 ** 21 - 1;

/** Most events in one frame. */
export const MAX_FRAME_EVENTS = 1024;

/** A checked frame. It covers the sequences `first` to `first + count - 1`. */
export interface EventFrame {
  readonly first: number;
  readonly count: number;
  readonly bytes: Uint8Array;
}

/** Bytes that a frame has beside its payloads. */
export function frameOverhead(name: Uint8Array, count: number): number {
  return HEAD_BYTES + name.length + count * LENGTH_BYTES;
}

/** `payloadBytes`: their sum. */
export function encodeFrame(
  name: Uint8Array,
  first: number,
  payloads: readonly Uint8Array[],
  payloadBytes: number,
): EventFrame {
  const count = payloads.length;
  const bytes = Buffer.allocUnsafe(frameOverhead(name, count) + payloadBytes);
  bytes[0] = VERSION;
  bytes[1] = 0;
  bytes.writeUInt16LE(name.length, 2);
  bytes.writeUInt32LE(count, 4);
  bytes.writeUInt32LE(first % TWO_32, 8);
  bytes.writeUInt32LE(Math.floor(first / TWO_32), 12);
  bytes.set(name, HEAD_BYTES);
  let at = HEAD_BYTES + name.length;
  for (const payload of payloads) {
    at = bytes.writeUInt32LE(payload.length, at);
    bytes.set(payload, at);
    at += payload.length;
  }
  return { first, count, bytes };
}

/**
 * Checks what a transport delivered, whatever it is: `malformed` = not a frame, `foreign` = of another origin (an older
 * epoch, or a new owner of a reused port).
 */
export function parseFrame(bytes: Uint8Array, name: Uint8Array): EventFrame | "malformed" | "foreign" {
  if (bytes.length < HEAD_BYTES || bytes[0] !== VERSION || bytes[1] !== 0) return "malformed";
  const bodyAt = HEAD_BYTES + (bytes[2]! | (bytes[3]! << 8));
  const count = readU32(bytes, 4);
  const high = readU32(bytes, 12);
  if (bodyAt > bytes.length || count > MAX_FRAME_EVENTS || high > MAX_HIGH) return "malformed";
  const first = high * TWO_32 + readU32(bytes, 8);
  let at = bodyAt;
  for (let i = 0; i < count; i++) {
    if (at + LENGTH_BYTES > bytes.length) return "malformed";
    at += LENGTH_BYTES + readU32(bytes, at);
  }
  if (at !== bytes.length || !Number.isSafeInteger(first + count)) return "malformed";
  if (bodyAt - HEAD_BYTES !== name.length) return "foreign";
  for (let i = 0; i < name.length; i++) if (bytes[HEAD_BYTES + i] !== name[i]) return "foreign";
  return { first, count, bytes };
}

/** Views of the payloads from the `skip`-th on. */
export function framePayloads({ bytes, count }: EventFrame, skip: number): Uint8Array[] {
  const payloads: Uint8Array[] = new Array(count - skip);
  let at = HEAD_BYTES + (bytes[2]! | (bytes[3]! << 8));
  for (let i = 0; i < count; i++) {
    const from = at + LENGTH_BYTES;
    at = from + readU32(bytes, at);
    if (i >= skip) payloads[i - skip] = bytes.subarray(from, at);
  }
  return payloads;
}

function readU32(bytes: Uint8Array, at: number): number {
  return (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0;
}

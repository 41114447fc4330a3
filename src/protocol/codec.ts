import { checkGenerateRequest, checkOffsets, notA, readFinish, readLogprobs } from "./codec-checks.ts";
import { StatorError } from "./errors.ts";
import type { GenerateRequest, TokenDelta, TokenLogprob } from "./generate.ts";
import type { EndpointCodec } from "./instance.ts";
import { decodeMessage, encodeMessage, pack, unpack } from "./message-codec.ts";
import type { TokenTable } from "./token-table.ts";

/*
 * The binary forms of what travels on the request plane. Msgpack for what happens once per request, a hand-made frame
 * for what happens once per token:
 *
 *   token delta   | u8 flags | u8 0 | u16 count | count x u32 token | msgpack tail, when flags say so |
 *   flags         1 = the tail has logprobs, 2 = the tail has the finish
 *
 * Generate requests and token deltas also have a JSON form, for endpoints that advertise it: the same members, byte strings
 * (tokens as u32) as in message-codec.ts. The first byte tells the forms apart: `{` begins neither a frame nor a msgpack
 * map.
 *
 * All integers are little endian. Every decoder throws `protocol_error` on bytes it does not know.
 */

export { pack, unpack } from "./message-codec.ts";

const FLAG_LOGPROBS = 1;
const FLAG_FINISH = 2;
const HEADER_BYTES = 4;
const OPENING_BRACE = 0x7b;

/** Most tokens in one delta. */
export const MAX_DELTA_TOKENS = 0xffff;

export function encodeTokens(tokens: Uint32Array): Uint8Array {
  if (littleEndian) return new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  const bytes = new Uint8Array(tokens.length * 4);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < tokens.length; i++) view.setUint32(i * 4, tokens[i]!, true);
  return bytes;
}

export function decodeTokens(bytes: Uint8Array): Uint32Array {
  if (bytes.length % 4 !== 0) throw new StatorError("protocol_error", "A token array is not a multiple of 4 bytes.");
  return readTokens(bytes, 0, bytes.length / 4);
}

export function encodeGenerateRequest(request: GenerateRequest, codec: EndpointCodec = "msgpack"): Uint8Array {
  const { tokens, generated } = request;
  const value = {
    ...request,
    tokens: encodeTokens(tokens),
    ...(generated === undefined ? {} : { generated: encodeTokens(generated) }),
  };
  return encodeMessage(value, codec);
}

/** The codec of an encoded generate request or token delta. */
export function codecOf(bytes: Uint8Array): EndpointCodec {
  return bytes[0] === OPENING_BRACE ? "json" : "msgpack";
}

export function decodeGenerateRequest(bytes: Uint8Array): GenerateRequest {
  const value = decodeMessage(bytes, codecOf(bytes));
  checkGenerateRequest(value);
  const { tokens, generated } = value as { readonly tokens?: unknown; readonly generated?: unknown };
  if (!(tokens instanceof Uint8Array)) throw notA("a generate request");
  if (generated === undefined) return { ...value, tokens: decodeTokens(tokens) };
  if (!(generated instanceof Uint8Array) || generated.length > value.stop.maxTokens * 4) {
    throw notA("a generate request");
  }
  return { ...value, tokens: decodeTokens(tokens), generated: decodeTokens(generated) };
}

export function encodeTokenDelta(delta: TokenDelta, codec: EndpointCodec = "msgpack"): Uint8Array {
  const { tokens, logprobs, finish } = delta;
  if (codec === "json") {
    const flat = logprobs?.map((entry) => flattenLogprob(entry).map(toJsonNumber));
    return encodeMessage({ tokens: encodeTokens(tokens), logprobs: flat, finish }, codec);
  }
  if (tokens.length > MAX_DELTA_TOKENS) throw new RangeError(`a delta holds at most ${MAX_DELTA_TOKENS} tokens`);
  const flags = (logprobs ? FLAG_LOGPROBS : 0) | (finish ? FLAG_FINISH : 0);
  const tail = flags === 0 ? undefined : pack({ logprobs: logprobs?.map(flattenLogprob), finish });
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + tokens.length * 4 + (tail?.length ?? 0));
  bytes[0] = flags;
  bytes[1] = 0;
  bytes.writeUInt16LE(tokens.length, 2);
  let at = HEADER_BYTES;
  for (let i = 0; i < tokens.length; i++) at = bytes.writeUInt32LE(tokens[i]!, at);
  if (tail) bytes.set(tail, at);
  return bytes;
}

export function decodeTokenDelta(bytes: Uint8Array): TokenDelta {
  if (bytes[0] === OPENING_BRACE) return readJsonDelta(decodeMessage(bytes, "json"));
  if (bytes.length < HEADER_BYTES) throw notA("a token delta");
  const flags = bytes[0]!;
  const count = bytes[2]! | (bytes[3]! << 8);
  const tailAt = HEADER_BYTES + count * 4;
  if (bytes.length < tailAt || (flags & ~(FLAG_LOGPROBS | FLAG_FINISH)) !== 0) throw notA("a token delta");
  const tokens = readTokens(bytes, HEADER_BYTES, count);
  if (flags === 0) return { tokens };
  const tail = unpack(bytes.subarray(tailAt));
  if (typeof tail !== "object" || tail === null) throw notA("a token delta");
  const { logprobs, finish } = tail as { readonly logprobs?: unknown; readonly finish?: unknown };
  return {
    tokens,
    ...(flags & FLAG_LOGPROBS ? { logprobs: readLogprobs(logprobs, count) } : {}),
    ...(flags & FLAG_FINISH ? { finish: readFinish(finish) } : {}),
  };
}

function readJsonDelta(value: unknown): TokenDelta {
  const { tokens: raw, logprobs, finish } = value as Record<string, unknown>;
  if (!(raw instanceof Uint8Array) || raw.length > MAX_DELTA_TOKENS * 4) throw notA("a token delta");
  const tokens = decodeTokens(raw);
  return {
    tokens,
    ...(logprobs === undefined ? {} : { logprobs: readLogprobs(fromJsonNumbers(logprobs), tokens.length) }),
    ...(finish === undefined ? {} : { finish: readFinish(finish) }),
  };
}

/** JSON has no infinity: null stands for the logprob of what is impossible. */
function toJsonNumber(value: number): number | null {
  return value === Number.NEGATIVE_INFINITY ? null : value;
}

function fromJsonNumbers(logprobs: unknown): unknown {
  if (!Array.isArray(logprobs)) return logprobs;
  return logprobs.map((flat: unknown) =>
    Array.isArray(flat) ? flat.map((it: unknown) => (it === null ? Number.NEGATIVE_INFINITY : it)) : flat,
  );
}

/**
 * The tokens of a delta that has nothing else, read into `into`: the per-token path, without an object. Returns their
 * number, or -1 when the delta needs {@link decodeTokenDelta}.
 */
export function readPlainDelta(bytes: Uint8Array, into: Uint32Array): number {
  if (bytes.length < HEADER_BYTES || bytes[0] !== 0) return -1;
  const count = bytes[2]! | (bytes[3]! << 8);
  if (bytes.length < HEADER_BYTES + count * 4 || count > into.length) return -1;
  for (let i = 0, at = HEADER_BYTES; i < count; i++, at += 4) into[i] = readToken(bytes, at);
  return count;
}

export function encodeTokenTable(table: TokenTable): Uint8Array {
  return pack({ bytes: table.bytes, offsets: encodeTokens(table.offsets), flags: table.flags });
}

export function decodeTokenTable(bytes: Uint8Array): TokenTable {
  const value = unpack(bytes) as Record<string, unknown>;
  const { bytes: pieces, offsets, flags } = value ?? {};
  if (!(pieces instanceof Uint8Array && offsets instanceof Uint8Array && flags instanceof Uint8Array)) {
    throw notA("a token table");
  }
  const table = { bytes: pieces, offsets: decodeTokens(offsets), flags };
  checkOffsets(table.offsets, flags.length, pieces.length);
  return table;
}

export function encodeFloats(values: Float32Array): Uint8Array {
  const bytes = new Uint8Array(values.length * 4);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < values.length; i++) view.setFloat32(i * 4, values[i]!, true);
  return bytes;
}

export function decodeFloats(bytes: Uint8Array): Float32Array {
  if (bytes.length % 4 !== 0) throw new StatorError("protocol_error", "A float array is not a multiple of 4 bytes.");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(i * 4, true));
}

const littleEndian = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

function readTokens(bytes: Uint8Array, at: number, count: number): Uint32Array {
  const tokens = new Uint32Array(count);
  for (let i = 0; i < count; i++, at += 4) tokens[i] = readToken(bytes, at);
  return tokens;
}

function readToken(bytes: Uint8Array, at: number): number {
  return (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0;
}

/** [logprob, token, logprob, token, logprob, ...] */
function flattenLogprob(entry: TokenLogprob): number[] {
  const flat = [entry.logprob];
  for (const { token, logprob } of entry.top) flat.push(token, logprob);
  return flat;
}

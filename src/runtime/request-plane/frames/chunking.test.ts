import fc from "fast-check";
import { expect, test } from "vitest";
import type { ByteLink } from "../connection/byte-link.ts";
import { Assembler } from "./assembler.ts";
import { CHUNK_BYTES, MAX_CHUNKED_MESSAGES } from "./chunks.ts";
import { FrameParser } from "./frame-parser.ts";
import { FrameSender } from "./frame-sender.ts";
import { FrameWriter } from "./frame-writer.ts";
import { encodeU32, FrameType, payloadLimits } from "./frames.ts";

/** A link that keeps what was written until the test takes it. */
class SlowLink implements ByteLink {
  readonly written: Uint8Array[] = [];
  waitingBytes = 0;
  start(): void {}
  end(): void {}
  destroy(): void {}

  write(parts: readonly Uint8Array[]): void {
    for (const part of parts) {
      this.written.push(part);
      this.waitingBytes += part.length;
    }
  }
}

interface Sent {
  readonly type: number;
  readonly stream: number;
  readonly size: number;
}

function setUp() {
  const link = new SlowLink();
  const writer = new FrameWriter(link);
  const sent: number[] = [];
  const sender = new FrameSender(writer, (stream) => sent.push(stream));
  const frames: Sent[] = [];
  const messages: { type: number; stream: number; payload: Buffer }[] = [];
  const assembler = new Assembler(1e9);
  const limits = payloadLimits({ maxOpenBytes: 1e9, maxDataBytes: 1e9 });
  const parser = new FrameParser(limits, (type, stream, payload) => {
    frames.push({ type, stream, size: payload.length });
    if (type === FrameType.part) assembler.add(stream, payload);
    else if (type === FrameType.cancel) {
      assembler.forget(stream);
      messages.push({ type, stream, payload: Buffer.from(payload) });
    } else messages.push({ type, stream, payload: Buffer.from(assembler.complete(stream, payload)) });
  });
  /** The link takes all that it has, and the sender goes on. False when there was nothing. */
  const drain = (): boolean => {
    writer.flush();
    const parts = link.written.splice(0);
    link.waitingBytes = 0;
    for (const part of parts) parser.push(part);
    sender.pump();
    return parts.length > 0;
  };
  return { link, writer, sender, sent, frames, messages, assembler, drain };
}

function pattern(size: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i++) bytes[i] = (i * 31 + seed + (i >>> 8)) & 0xff;
  return bytes;
}

test("messages of any size on any streams arrive whole, in each stream's order", () => {
  const message = fc.record({
    stream: fc.integer({ min: 1, max: 12 }),
    size: fc.oneof(
      fc.integer({ min: 0, max: 200 }),
      fc.integer({ min: CHUNK_BYTES - 12, max: CHUNK_BYTES + 12 }),
      fc.integer({ min: 2 * CHUNK_BYTES - 3, max: 2 * CHUNK_BYTES + 3 }),
      fc.integer({ min: 0, max: 400_000 }),
    ),
    head: fc.integer({ min: 0, max: 12 }),
  });
  fc.assert(
    fc.property(fc.array(message, { minLength: 1, maxLength: 24 }), (plan) => {
      const { sender, messages, assembler, drain } = setUp();
      const expected = new Map<number, Buffer[]>();
      for (const [i, { stream, size, head }] of plan.entries()) {
        const [first, rest] = [pattern(head, i), pattern(size, i)];
        sender.send(FrameType.data, stream, rest, first);
        expected.set(stream, [...(expected.get(stream) ?? []), Buffer.concat([first, rest])]);
      }
      while (drain());
      for (const [stream, payloads] of expected) {
        const seen = messages.filter((it) => it.stream === stream).map((it) => it.payload);
        expect(seen.length).toBe(payloads.length);
        expect(seen.every((it, i) => it.equals(payloads[i]!))).toBe(true);
      }
      expect(assembler.size).toBe(0);
    }),
    { numRuns: 60 },
  );
});

test("a large message lets others through: small frames wait behind a few pieces, large messages take turns", () => {
  const { link, writer, sender, frames, messages, sent, drain } = setUp();
  sender.send(FrameType.data, 1, pattern(100 * CHUNK_BYTES, 1));
  sender.send(FrameType.end, 1, new Uint8Array(0));
  writer.flush();
  expect(link.waitingBytes).toBeLessThan(6 * CHUNK_BYTES);
  sender.send(FrameType.data, 2, Buffer.from("token"));
  sender.send(FrameType.data, 3, pattern(3 * CHUNK_BYTES, 3));
  drain();
  expect(messages.map((it) => it.stream)).toEqual([2]);
  expect(sender.hasBacklog(1)).toBe(true);
  while (drain());
  expect(messages.map((it) => [it.stream, it.type])).toEqual([
    [2, FrameType.data],
    [3, FrameType.data],
    [1, FrameType.data],
    [1, FrameType.end],
  ]);
  // 3's pieces lie between those of 1.
  const order = frames.filter((it) => it.size > 1000).map((it) => it.stream);
  const [from, to] = [order.indexOf(3), order.lastIndexOf(3)];
  expect(order.slice(from, to).filter((it) => it === 1).length).toBeGreaterThanOrEqual(1);
  expect(to).toBeLessThan(20);
  expect(sent).toEqual([3, 1]);
  expect(sender.hasBacklog(1)).toBe(false);
});

test("a stream that is forgotten sends no further piece, and the next one that waited takes its place", () => {
  const { sender, frames, messages, drain } = setUp();
  const streams = Array.from({ length: MAX_CHUNKED_MESSAGES + 2 }, (_, i) => i + 1);
  for (const stream of streams) sender.send(FrameType.open, stream, pattern(4 * CHUNK_BYTES, stream));
  drain();
  expect(new Set(frames.map((it) => it.stream)).size).toBeLessThanOrEqual(MAX_CHUNKED_MESSAGES);
  sender.forget(2);
  sender.send(FrameType.cancel, 2, Uint8Array.of(1));
  while (drain());
  const whole = messages.filter((it) => it.type === FrameType.open).map((it) => it.stream);
  expect(whole.sort((a, b) => a - b)).toEqual(streams.filter((it) => it !== 2));
  expect(messages.filter((it) => it.stream === 2).map((it) => it.type)).toEqual([FrameType.cancel]);
});

const piece = (total: number, bytes: number): Uint8Array => Buffer.concat([encodeU32(total), new Uint8Array(bytes)]);
const broken = expect.objectContaining({ code: "protocol_error" });

test("pieces that do not fit together are a protocol error", () => {
  const wrong: [string, (assembler: Assembler) => void][] = [
    ["too large", (it) => it.add(1, piece(1001, 5))],
    ["empty", (it) => it.add(1, piece(100, 0))],
    ["no size", (it) => it.add(1, Uint8Array.of(1, 2))],
    ["more than told", (it) => it.add(1, piece(100, 101))],
    [
      "less than told",
      (it) => {
        it.add(1, piece(100, 50));
        it.complete(1, new Uint8Array(49));
      },
    ],
    [
      "another size",
      (it) => {
        it.add(1, piece(100, 50));
        it.add(1, piece(101, 10));
      },
    ],
    [
      "too many",
      (it) => {
        for (let stream = 0; stream <= MAX_CHUNKED_MESSAGES; stream++) it.add(stream, piece(100, 1));
      },
    ],
  ];
  for (const [, act] of wrong) expect(() => act(new Assembler(1000))).toThrow(broken);
});

test("a size that a peer only tells reserves little", () => {
  const assembler = new Assembler(2 ** 32);
  const before = process.memoryUsage().arrayBuffers;
  for (let stream = 0; stream < MAX_CHUNKED_MESSAGES; stream++) assembler.add(stream, piece(2 ** 32 - 1, 1000));
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(2_000_000);
  expect(assembler.size).toBe(MAX_CHUNKED_MESSAGES);
});

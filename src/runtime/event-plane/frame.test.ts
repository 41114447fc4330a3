import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { encodeFrame, framePayloads, MAX_FRAME_EVENTS, parseFrame } from "./frame.ts";

const name = Buffer.from("ns/worker/w-1/e1/kv-events");
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");

function encode(first: number, payloads: readonly Uint8Array[], origin: Uint8Array = name): Uint8Array {
  const size = payloads.reduce((sum, payload) => sum + payload.length, 0);
  return encodeFrame(origin, first, payloads, size).bytes;
}

const payloads = fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 12 });
const sequence = fc.oneof(
  fc.nat(),
  fc.integer({ min: 2 ** 32 - 20, max: 2 ** 32 + 20 }),
  fc.integer({ min: 2 ** 52, max: Number.MAX_SAFE_INTEGER - 20 }),
);

describe("event frames", () => {
  test("have the documented layout", () => {
    const bytes = encode(2 ** 32 + 5, [Buffer.from("ab"), Buffer.from("c")], Buffer.from("xyz"));
    expect(hex(bytes)).toBe("01000300" + "02000000" + "0500000001000000" + "78797a" + "020000006162" + "0100000063");
  });

  test("are read back as they were written, from any event on", () => {
    fc.assert(
      fc.property(sequence, payloads, (first, events) => {
        const frame = parseFrame(encode(first, events), name);
        if (typeof frame === "string") throw new Error(frame);
        expect([frame.first, frame.count]).toEqual([first, events.length]);
        for (let skip = 0; skip <= events.length; skip++) {
          expect(framePayloads(frame, skip).map(hex)).toEqual(events.slice(skip).map(hex));
        }
      }),
    );
  });

  test("cut short or with something behind them are malformed", () => {
    fc.assert(
      fc.property(sequence, payloads, (first, events) => {
        const bytes = encode(first, events);
        for (let length = 0; length < bytes.length; length++) {
          expect(parseFrame(bytes.subarray(0, length), name)).toBe("malformed");
        }
        expect(parseFrame(Buffer.concat([bytes, Buffer.of(0)]), name)).toBe("malformed");
      }),
      { numRuns: 50 },
    );
  });

  test("any garbage and any changed byte give a frame that can be read, or a reason", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        expect(parseFrame(bytes, name)).toBeTypeOf("string");
      }),
      { numRuns: 1000 },
    );
    fc.assert(
      fc.property(payloads, fc.nat(), fc.integer({ min: 0, max: 255 }), (events, at, value) => {
        const bytes = Buffer.from(encode(7, events));
        bytes[at % bytes.length] = value;
        const frame = parseFrame(bytes, name);
        if (typeof frame !== "string") expect(framePayloads(frame, 0)).toHaveLength(frame.count);
      }),
      { numRuns: 1000 },
    );
  });

  test("with counts, lengths or sequences beyond the bounds are malformed", () => {
    const bytes = Buffer.from(encode(0, [Buffer.from("abc")]));
    const change = (at: number, value: number): Buffer => {
      const changed = Buffer.from(bytes);
      changed.writeUInt32LE(value, at);
      return changed;
    };
    const lengthAt = 16 + name.length;
    for (const changed of [
      change(4, 0xffffffff),
      change(4, MAX_FRAME_EVENTS + 1),
      change(4, 2),
      change(lengthAt, 0xffffffff),
      change(lengthAt, 4),
      change(12, 2 ** 21),
      change(0, 2),
      change(0, 0xffff0001),
    ]) {
      expect(parseFrame(changed, name)).toBe("malformed");
    }
    expect(parseFrame(encode(Number.MAX_SAFE_INTEGER, [Buffer.from("a")]), name)).toBe("malformed");
  });

  test("of another origin are foreign, however much alike", () => {
    for (const other of ["ns/worker/w-1/e2/kv-events", "ns/worker/w-1/e1/kv-event", "ns/worker/w-1/e1/kv-events2"]) {
      expect(parseFrame(encode(0, [], Buffer.from(other)), name)).toBe("foreign");
    }
  });
});

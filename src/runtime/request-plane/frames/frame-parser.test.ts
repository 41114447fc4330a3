import fc from "fast-check";
import { expect, test } from "vitest";
import { StatorError } from "../../../protocol/errors.ts";
import { FrameParser } from "./frame-parser.ts";
import {
  decodeCancel,
  decodeError,
  decodeHello,
  decodeOpen,
  decodeU32,
  encodeHello,
  encodeOpenHead,
  FrameType,
  NONCE_BYTES,
  payloadLimits,
} from "./frames.ts";

const limits = { maxOpenBytes: 50_000, maxDataBytes: 20_000 };

/** A reference writer: one frame after another, the slow way. */
function frameBytes(type: number, stream: number, payload: Uint8Array): Buffer {
  const header = Buffer.alloc(9);
  header.writeUInt32LE(payload.length, 0);
  header[4] = type;
  header.writeUInt32LE(stream, 5);
  return Buffer.concat([header, payload]);
}

function collect(): { frames: [number, number, string][]; parser: FrameParser } {
  const frames: [number, number, string][] = [];
  const parser = new FrameParser(payloadLimits(limits), (type, stream, payload) => {
    frames.push([type, stream, Buffer.from(payload).toString("hex")]);
  });
  return { frames, parser };
}

const frame = fc.record({
  type: fc.constantFrom(FrameType.data, FrameType.open),
  stream: fc.integer({ min: 0, max: 0xffffffff }),
  payload: fc.uint8Array({ maxLength: 40 }),
});

test("every split point of a sequence of frames gives the same frames", () => {
  fc.assert(
    fc.property(fc.array(frame, { minLength: 1, maxLength: 4 }), (frames) => {
      const bytes = Buffer.concat(frames.map((it) => frameBytes(it.type, it.stream, it.payload)));
      const expected = frames.map((it) => [it.type, it.stream, Buffer.from(it.payload).toString("hex")]);
      for (let at = 0; at <= bytes.length; at++) {
        const { frames: seen, parser } = collect();
        parser.push(bytes.subarray(0, at));
        parser.push(bytes.subarray(at));
        expect(seen).toEqual(expected);
        expect(parser.isIdle).toBe(true);
      }
    }),
    { numRuns: 60 },
  );
});

test("any chunking, down to single bytes, with large frames among them", () => {
  fc.assert(
    fc.property(
      fc.array(frame, { maxLength: 8 }),
      fc.integer({ min: 1000, max: 20_000 }),
      fc.array(fc.integer({ min: 1, max: 3000 }), { minLength: 1 }),
      (frames, largeBytes, sizes) => {
        const all = [
          ...frames,
          { type: FrameType.data, stream: 7, payload: new Uint8Array(largeBytes).fill(9) },
          ...frames,
        ];
        const bytes = Buffer.concat(all.map((it) => frameBytes(it.type, it.stream, it.payload)));
        const { frames: seen, parser } = collect();
        for (let at = 0, i = 0; at < bytes.length; i++) {
          const size = sizes[i % sizes.length]!;
          parser.push(bytes.subarray(at, at + size));
          at += size;
        }
        expect(seen).toEqual(all.map((it) => [it.type, it.stream, Buffer.from(it.payload).toString("hex")]));
      },
    ),
    { numRuns: 100 },
  );
});

test("a truncated sequence gives the whole frames and waits for the rest", () => {
  const first = frameBytes(FrameType.data, 1, Buffer.from("abc"));
  const bytes = Buffer.concat([first, frameBytes(FrameType.data, 2, Buffer.from("defg"))]);
  for (let length = first.length + 1; length < bytes.length; length++) {
    const { frames, parser } = collect();
    parser.push(bytes.subarray(0, length));
    expect(frames).toEqual([[FrameType.data, 1, "616263"]]);
    expect(parser.isIdle).toBe(false);
  }
});

test("garbage is a protocol error or a wait, never anything else", () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 64 }), { maxLength: 8 }), (chunks) => {
      const { parser } = collect();
      try {
        for (const chunk of chunks) parser.push(chunk);
      } catch (thrown) {
        expect(thrown).toBeInstanceOf(StatorError);
        expect((thrown as StatorError).code).toBe("protocol_error");
      }
    }),
  );
});

test("a frame over its limit, or of no known type, is refused by its header alone", () => {
  for (const [type, size] of [
    [FrameType.data, 20_001],
    [FrameType.open, 60_000],
    [FrameType.end, 1],
    [FrameType.hello, 57],
    [0, 0],
    [99, 0],
    [255, 4],
  ] as const) {
    const header = frameBytes(type, 1, new Uint8Array(0));
    header.writeUInt32LE(size, 0);
    expect(() => collect().parser.push(header)).toThrow(StatorError);
  }
});

test("an announced size reserves nothing before the bytes come", () => {
  const parser = new FrameParser([undefined, 2 ** 31], () => {});
  const header = frameBytes(1, 1, new Uint8Array(0));
  header.writeUInt32LE(2 ** 31 - 1, 0);
  const before = process.memoryUsage().arrayBuffers;
  parser.push(header);
  parser.push(new Uint8Array(1000));
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(10_000_000);
});

test("the decoders throw protocol errors only, and read back what was written", () => {
  const hello = { maxOpenBytes: 1, maxDataBytes: 2, windowBytes: 3, maxStreams: 4 };
  for (const hasSecret of [true, false]) {
    const bytes = encodeHello(hello, new Uint8Array(NONCE_BYTES), hasSecret);
    expect(decodeHello(bytes)).toEqual({ ...hello, hasSecret });
  }
  fc.assert(
    fc.property(
      fc.string(),
      fc.string(),
      fc.uint8Array(),
      fc.integer({ min: 0, max: 1e9 }),
      (endpoint, id, body, ms) => {
        const well = (text: string): string => Buffer.from(text).toString();
        const head = encodeOpenHead({ endpoint, requestId: id, body, timeoutMs: 1, traceparent: "00-a" }, ms);
        expect(decodeOpen(Buffer.concat([head, body]))).toEqual({
          endpoint: well(endpoint),
          requestId: well(id),
          body: Buffer.from(body),
          timeoutMs: ms,
          traceparent: "00-a",
        });
      },
    ),
  );
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (bytes) => {
      for (const decode of [decodeHello, decodeOpen, decodeU32, decodeCancel, decodeError]) {
        try {
          decode(bytes);
        } catch (thrown) {
          expect((thrown as StatorError).code).toBe("protocol_error");
        }
      }
    }),
    { numRuns: 1000 },
  );
});

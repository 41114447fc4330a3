import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { decodeMessage, encodeMessage } from "./message-codec.ts";

const values = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: "small" },
    fc.constantFrom(null, true, false),
    fc.integer(),
    fc.double({ noNaN: true, noDefaultInfinity: true }).map((it) => (Object.is(it, -0) ? 0 : it)),
    fc.string({ unit: "grapheme" }),
    fc.uint8Array(),
    fc.array(tie("value")),
    fc.dictionary(
      fc.string().filter((key) => key !== "__proto__" && key !== "$base64"),
      tie("value"),
      { noNullPrototype: true },
    ),
  ),
})).value;

describe.each(["msgpack", "json"] as const)("%s messages", (codec) => {
  test("come back as they were", () => {
    fc.assert(
      fc.property(values, (value) => {
        expect(plain(decodeMessage(encodeMessage(value, codec), codec))).toEqual(plain(value));
      }),
    );
  });

  test("garbage and cut messages are protocol errors, nothing else", () => {
    fc.assert(
      fc.property(fc.uint8Array(), values, fc.nat(), (garbage, value, at) => {
        const whole = encodeMessage(value, codec);
        for (const bytes of [garbage, whole.subarray(0, at % (whole.length + 1))]) {
          try {
            decodeMessage(bytes, codec);
          } catch (error) {
            expect(error).toMatchObject({ code: "protocol_error" });
          }
        }
      }),
    );
  });
});

test("json: a prototype cannot be reached", () => {
  const bytes = Buffer.from('{"a":{"__proto__":{"x":1}}}');
  expect(() => decodeMessage(bytes, "json")).toThrow("__proto__");
  expect(() => decodeMessage(Buffer.from('{"$base64":3}'), "json")).toThrow("$base64");
});

/** Buffers and byte arrays are the same thing. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return { bytes: [...value] };
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, it]) => [key, plain(it)]));
}

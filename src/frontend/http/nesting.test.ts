import fc from "fast-check";
import { expect, it } from "vitest";
import { nestsDeeperThan } from "./nesting.ts";

const depthOf = (value: unknown): number =>
  typeof value === "object" && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0;

it("agrees with the depth of the parsed value", () => {
  const text = fc.oneof(fc.string(), fc.constantFrom(`"`, "\\", `\\"`, "[[[", "}}}", `"[`));
  const value = fc.letrec((tie) => ({
    any: fc.oneof(
      { maxDepth: 6 },
      text,
      fc.array(tie("any"), { maxLength: 3 }),
      fc.dictionary(text, tie("any"), { maxKeys: 3 }),
    ),
  })).any;
  fc.assert(
    fc.property(value, fc.integer({ min: 0, max: 8 }), (json, limit) => {
      expect(nestsDeeperThan(Buffer.from(JSON.stringify(json)), limit)).toBe(depthOf(json) > limit);
    }),
  );
});

it("ends on text that is no JSON", () => {
  fc.assert(fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => typeof nestsDeeperThan(bytes, 4) === "boolean"));
  expect(nestsDeeperThan(Buffer.from(`"\\`), 1)).toBe(false);
});

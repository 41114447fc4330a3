import { expect, test } from "vitest";
import { errorCatalogue, fromWireError, StatorError, toWireError } from "./errors.ts";

test("an error comes back from the wire as it was", () => {
  const error = new StatorError("overloaded", "full", { param: "p", retryAfterSeconds: 0.5, id: "err-1" });
  expect(toWireError(fromWireError(toWireError(error)))).toEqual(toWireError(error));
});

test.each([Number.NaN, Number.POSITIVE_INFINITY, -1, "3", null, {}])(
  "%j is no time to come back",
  (retryAfterSeconds) => {
    const error = fromWireError({ code: "overloaded", message: "full", retryAfterSeconds });
    expect(error).toMatchObject({ code: "overloaded", retryAfterSeconds: undefined });
  },
);

test("texts of a peer are bounded", () => {
  const long = "x".repeat(100_000);
  const error = fromWireError({ code: "engine_error", message: long, param: long, id: long });
  expect([error.message.length, error.param?.length, error.id?.length]).toEqual([2000, 200, 128]);
});

test.each([null, 3, "overloaded", {}, { code: "toString", message: "m" }, { code: "overloaded", message: 3 }])(
  "%j is not in the catalogue",
  (wire) => {
    expect(fromWireError(wire).code).toBe("protocol_error");
    expect(errorCatalogue.protocol_error.migratable).toBe(false);
  },
);

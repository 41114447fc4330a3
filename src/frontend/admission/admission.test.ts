import { expect, it } from "vitest";
import { Admission } from "./admission.ts";

it("counts, refuses when full, and gives each place back once", () => {
  const admission = new Admission(2);
  const first = admission.enter();
  admission.enter();
  expect(() => admission.enter()).toThrow(expect.objectContaining({ code: "overloaded", retryAfterSeconds: 1 }));
  first.close();
  first.close();
  expect(admission.inFlight).toBe(1);
  admission.enter();
  expect(() => admission.enter()).toThrow("maxStreams");
});

it("drains", async () => {
  const admission = new Admission(2);
  const ticket = admission.enter();
  admission.startDraining();
  expect(() => admission.enter()).toThrow(expect.objectContaining({ code: "draining" }));
  const aborted = new AbortController();
  const gaveUp = admission.idle(aborted.signal);
  const idle = admission.idle(new AbortController().signal);
  aborted.abort();
  expect(await gaveUp).toBe(false);
  ticket.close();
  expect(await idle).toBe(true);
  expect(await admission.idle(aborted.signal)).toBe(true);
});

import fc from "fast-check";
import { expect, it } from "vitest";
import { EventQueue, type Phase, phases } from "./event-queue.ts";

it("orders by time, then phase, then source", () => {
  const queue = new EventQueue(5);
  queue.set(4, 1, phases.passBegin);
  queue.set(3, 1, phases.arrival);
  queue.set(2, 1, phases.arrival);
  queue.set(1, 1, phases.passEnd);
  queue.set(0, 2, phases.passEnd);
  expect(drained(queue)).toEqual([1, 2, 3, 4, 0]);
});

it("does what sorting all sources would, after any changes", () => {
  const change = fc.record({
    source: fc.nat(11),
    time: fc.oneof(fc.nat(5), fc.constant(Number.POSITIVE_INFINITY)),
    phase: fc.nat(3),
  });
  fc.assert(
    fc.property(fc.array(change, { maxLength: 60 }), (changes) => {
      const queue = new EventQueue(12);
      const due = new Map<number, { time: number; phase: number }>();
      for (const { source, time, phase } of changes) {
        queue.set(source, time, phase as Phase);
        due.delete(source);
        if (time < Number.POSITIVE_INFINITY) due.set(source, { time, phase });
        expect(queue.timeOf(source)).toBe(time);
      }
      const sorted = [...due].sort(([one, a], [other, b]) => a.time - b.time || a.phase - b.phase || one - other);
      expect(drained(queue)).toEqual(sorted.map(([source]) => source));
    }),
    { numRuns: 300 },
  );
});

function drained(queue: EventQueue): number[] {
  const order: number[] = [];
  for (let source = queue.first; source !== undefined; source = queue.first) {
    order.push(source);
    queue.remove(source);
  }
  return order;
}

import fc from "fast-check";
import { expect, test } from "vitest";
import type { EventFrame } from "./frame.ts";
import { FrameQueue, QueueBudget } from "./frame-queue.ts";

const makeFrame = (first: number, bytes: number): EventFrame => ({ first, count: 1, bytes: new Uint8Array(bytes) });

test("queues keep to their share and to the common budget, lose oldest frames first, and give everything back", () => {
  const operation = fc.record({
    queue: fc.nat({ max: 5 }),
    kind: fc.constantFrom("push", "push", "push", "shift", "clear"),
    bytes: fc.integer({ min: 1, max: 60 }),
  });
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 300 }), (operations) => {
      const budget = new QueueBudget(40, 800);
      const queues = Array.from({ length: 6 }, () => new FrameQueue(budget));
      const models: EventFrame[][] = queues.map(() => []);
      operations.forEach(({ queue: at, kind, bytes }, first) => {
        const queue = queues[at]!;
        const model = models[at]!;
        if (kind === "push") {
          const frame = makeFrame(first, bytes);
          model.push(frame);
          model.splice(0, queue.push(frame));
        } else if (kind === "shift") {
          queue.shift();
          model.shift();
        } else {
          queue.clear();
          model.length = 0;
        }
        expect(queue.peek()).toBe(model[0]);
        expect(queue.length).toBe(model.length);
        const all = models.flat();
        expect(budget.frames).toBe(all.length);
        expect(budget.bytes).toBe(all.reduce((sum, frame) => sum + frame.bytes.length, 0));
        expect(budget.frames).toBeLessThanOrEqual(40);
        expect(budget.bytes).toBeLessThanOrEqual(800);
        expect(model.length).toBeLessThanOrEqual(10);
      });
      for (const queue of queues) queue.clear();
      expect([budget.frames, budget.bytes]).toEqual([0, 0]);
    }),
    { numRuns: 200 },
  );
});

import fc from "fast-check";
import { expect, test } from "vitest";
import type { EventFrame } from "./frame.ts";
import { ReplayRing } from "./replay-ring.ts";

test("the ring equals a plain list of frames from which the oldest are cut", () => {
  const sizes = fc.array(fc.record({ count: fc.integer({ min: 1, max: 5 }), bytes: fc.integer({ min: 1, max: 50 }) }), {
    maxLength: 3000,
    size: "max",
  });
  fc.assert(
    fc.property(
      sizes,
      fc.integer({ min: 1, max: 40 }),
      fc.integer({ min: 1, max: 400 }),
      (frames, maxEvents, maxBytes) => {
        const ring = new ReplayRing({ maxEvents, maxBytes });
        let model: EventFrame[] = [];
        let next = 0;
        for (const { count, bytes } of frames) {
          const frame = { first: next, count, bytes: new Uint8Array(bytes) };
          next += count;
          ring.append(frame);
          model.push(frame);
          const sum = (pick: (it: EventFrame) => number): number => model.reduce((total, it) => total + pick(it), 0);
          while (model.length > 1 && (sum((it) => it.count) > maxEvents || sum((it) => it.bytes.length) > maxBytes)) {
            model = model.slice(1);
          }
          expect(ring.bytes).toBe(sum((it) => it.bytes.length));
        }
        expect([ring.first, ring.next]).toEqual([model[0]?.first ?? 0, next]);
        for (let sequence = Math.max(0, ring.first - 3); sequence <= next; sequence++) {
          const covering = model.find((it) => sequence < it.first + it.count);
          expect(ring.frameAt(sequence)).toBe(covering);
        }
      },
    ),
    { numRuns: 30 },
  );
});

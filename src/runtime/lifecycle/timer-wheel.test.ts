import fc from "fast-check";
import { expect, test } from "vitest";
import { TimerWheel } from "./timer-wheel.ts";

function virtualWheel(tickMs = 100) {
  const clock = { time: 5, now: () => clock.time, wallNow: () => clock.time };
  const wheel = new TimerWheel({ tickMs, clock, manual: true });
  const advanceTo = (time: number): void => {
    clock.time = time;
    wheel.advance();
  };
  return { clock, wheel, advanceTo };
}

test("entries run once, never early and at most one tick late, in any mix of schedule, cancel and pauses", () => {
  const step = fc.oneof(
    fc.record({ kind: fc.constant("schedule" as const), delayMs: fc.integer({ min: -5, max: 200_000 }) }),
    fc.record({ kind: fc.constant("cancel" as const), index: fc.nat(50) }),
    fc.record({ kind: fc.constant("advance" as const), ms: fc.integer({ min: 0, max: 90_000 }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const { clock, wheel, advanceTo } = virtualWheel();
      const entries: { dueMs: number; ranAt?: number; cancelled: boolean; cancel(): void }[] = [];
      for (const action of steps) {
        if (action.kind === "schedule") {
          const entry = { dueMs: clock.time + Math.max(0, action.delayMs), cancelled: false, cancel() {} };
          const deadline = wheel.schedule(action.delayMs, () => {
            expect(entries[index]!.ranAt).toBeUndefined();
            entries[index]!.ranAt = clock.time;
          });
          entry.cancel = () => deadline.cancel();
          const index = entries.push(entry) - 1;
        } else if (action.kind === "cancel") {
          const entry = entries[action.index];
          if (entry && entry.ranAt === undefined) entry.cancelled = true;
          entry?.cancel();
        } else {
          advanceTo(clock.time + action.ms);
        }
        let waiting = 0;
        for (const entry of entries) {
          if (entry.cancelled) expect(entry.ranAt).toBeUndefined();
          else if (entry.ranAt === undefined) {
            expect(clock.time).toBeLessThan(entry.dueMs + 100);
            waiting++;
          } else expect(entry.ranAt).toBeGreaterThanOrEqual(entry.dueMs);
        }
        expect(wheel.size).toBe(waiting);
      }
    }),
    { numRuns: 300 },
  );
});

test("a callback may cancel its neighbours and schedule new entries", () => {
  const { wheel, advanceTo } = virtualWheel();
  const ran: string[] = [];
  wheel.schedule(100, () => {
    ran.push("first");
    second.cancel();
    wheel.schedule(0, () => ran.push("third"));
  });
  const second = wheel.schedule(100, () => ran.push("second"));
  advanceTo(210);
  expect(ran).toEqual(["first"]);
  advanceTo(320);
  expect(ran).toEqual(["first", "third"]);
  expect(wheel.size).toBe(0);
});

test("runs by itself, and stops its timer when nothing is left or when it is closed", async () => {
  const wheel = new TimerWheel({ tickMs: 5 });
  await new Promise<void>((resolve) => {
    const keepAlive = setTimeout(() => {}, 5000);
    wheel.schedule(12, () => {
      clearTimeout(keepAlive);
      resolve();
    });
  });
  wheel.schedule(60_000, () => {});
  wheel.close();
  expect(wheel.size).toBe(0);
  wheel.schedule(1, () => expect.unreachable()).cancel();
  expect(wheel.size).toBe(0);
});

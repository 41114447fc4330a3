import { expect, test } from "vitest";
import { seededRandom } from "../../protocol/random.ts";
import { Backoff } from "./backoff.ts";
import { Shutdown, type ShutdownPhase } from "./shutdown.ts";
import { uniqueId } from "./unique-id.ts";

test("the three phases run in order, once, whoever asks", async () => {
  const calls: string[] = [];
  const phases: ShutdownPhase[] = [];
  const shutdown = new Shutdown(
    {
      stopAccepting: () => void calls.push("stop"),
      drain: async () => void calls.push("drain"),
      close: () => void calls.push("close"),
    },
    { drainTimeoutMs: 1000, onPhase: (phase) => phases.push(phase) },
  );
  const [first, second] = await Promise.all([shutdown.run(), shutdown.run()]);
  expect(first).toEqual({ drained: true, problems: [] });
  expect(second).toBe(first);
  expect(calls).toEqual(["stop", "drain", "close"]);
  expect(phases).toEqual(["stopping", "draining", "closing", "closed"]);
});

test("a drain that does not end is cut by its deadline, or at once by hurry; the rest still runs", async () => {
  for (const how of ["deadline", "hurry", "hurry before"]) {
    let closed = false;
    const shutdown: Shutdown = new Shutdown(
      {
        stopAccepting: () => {
          throw new Error("stop failed");
        },
        drain: () => {
          if (how === "hurry") shutdown.hurry();
          return new Promise(() => {});
        },
        close: () => {
          closed = true;
        },
      },
      { drainTimeoutMs: how === "deadline" ? 20 : 60_000 },
    );
    if (how === "hurry before") shutdown.hurry();
    const outcome = await shutdown.run();
    expect(outcome.drained).toBe(false);
    expect(outcome.problems.map(String)).toEqual(["Error: stop failed", expect.stringContaining("draining")]);
    expect(closed).toBe(true);
    expect(shutdown.phase).toBe("closed");
  }
});

test("back-off grows to its cap, with jitter, and starts again after a success", () => {
  const plain = new Backoff({ initialMs: 10, maxMs: 100, jitter: 0 });
  expect([1, 2, 3, 4, 5, 6].map(() => plain.nextDelayMs())).toEqual([10, 20, 40, 80, 100, 100]);
  expect(plain.failures).toBe(6);
  plain.reset();
  expect(plain.nextDelayMs()).toBe(10);
  const jittered = new Backoff({ initialMs: 10, maxMs: 100 }, seededRandom(1));
  for (let i = 0; i < 50; i++) {
    const full = Math.min(10 * 2 ** i, 100);
    const delay = jittered.nextDelayMs();
    expect(delay).toBeGreaterThan(full / 2 - 1e-9);
    expect(delay).toBeLessThanOrEqual(full);
  }
});

test("unique ids are unique and plain", () => {
  const ids = new Set(Array.from({ length: 10_000 }, () => uniqueId("w-")));
  expect(ids.size).toBe(10_000);
  for (const id of ids) expect(id).toMatch(/^w-[0-9a-z]{16}$/);
});

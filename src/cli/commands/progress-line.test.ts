import { expect, test } from "vitest";
import type { Progress } from "../../loadgen/load-run.ts";
import { ProgressLine } from "./progress-line.ts";

const ended = (ttftMs: number, lateMs = 0): Progress["ended"] & {} => ({
  ...{ startedAtMs: 0, lateMs, ttftMs, e2eMs: 0, gapsMs: [], error: undefined },
  ...{ promptTokens: 0, completionTokens: 0, cachedTokens: 0 },
});

function line(columns?: number) {
  const written: string[] = [];
  const clock = { ms: 0 };
  const target = { write: (text: string) => written.push(text), ...(columns === undefined ? {} : { columns }) };
  const it = new ProgressLine(target, () => clock.ms);
  return { it, written, clock };
}

test("the line: done of all, rate, in flight, median TTFT; failures and lateness only when there are any", () => {
  const { it, written, clock } = line(0);
  const base = { total: 300, sent: 10, inFlight: 4, failed: 0 };
  for (const [i, ttft] of [50, 10, 30].entries()) it.update({ ...base, done: i + 1, ended: ended(ttft) });
  clock.ms = 2_000;
  it.update({ ...base, done: 3 });
  expect(written.at(-1)).toBe("\r\x1b[K3/300  2 s  1.5/s  4 in flight  TTFT p50 30 ms");
  clock.ms = 4_000;
  it.update({ ...base, done: 4, failed: 1, ended: ended(30, 11) });
  expect(written.at(-1)).toBe("\r\x1b[K4/300  4 s  1.0/s  4 in flight  TTFT p50 30 ms  1 FAILED  1 SENT LATE");
  it.clear();
  expect(written.at(-1)).toBe("\r\x1b[K");
});

test("it is written ten times a second at most, and never wraps", () => {
  const { it, written, clock } = line(20);
  for (; clock.ms < 1_000; clock.ms++) it.update({ total: 1e6, sent: 0, inFlight: 9_999, done: 0, failed: 0 });
  expect(written.length).toBe(10);
  for (const text of written) expect(text.length).toBeLessThan(20 + "\r\x1b[K".length);
});

import { afterAll, beforeAll, expect, test } from "vitest";
import { errorCatalogue } from "../../src/protocol/errors.ts";
import { seededRandom } from "../../src/protocol/random.ts";
import { expectPerfect, Fleet, type Outcome } from "../harness/fleet.ts";
import { temporaryFolder } from "../harness/stator-process.ts";

/*
 * Five minutes of churn: workers are killed, stopped, told to go and added, at random, under more than 2,000 requests.
 * Every request ends, in success or with a typed error, within its deadline.
 */

const CHURN_MS = 5 * 60_000;
const REQUESTS_AT_ONCE = 16;
const DEADLINE_MS = 30_000;
/** What the client may wait beyond the deadline: the answer's way back on a machine that is busy. */
const SLACK_MS = 3_000;

let fleet: Fleet;
beforeAll(async () => {
  fleet = await Fleet.start({ discovery: `file:${temporaryFolder()}`, tokenRate: 100 });
}, 60_000);
afterAll(() => fleet?.stop());

test(
  "every request ends in success or with a typed error, within its deadline",
  async () => {
    const random = seededRandom(20_261_130);
    const endsAtMs = performance.now() + CHURN_MS;
    const going = (): boolean => performance.now() < endsAtMs;
    const outcomes: Outcome[] = [];
    const asking = async (): Promise<void> => {
      while (going()) {
        const tokens = 20 + Math.floor(random.next() * 150);
        const headers = { "x-stator-timeout-ms": String(DEADLINE_MS) };
        for (const outcome of await fleet.streams(1, tokens, headers).outcomes) {
          outcomes.push(outcome);
          if (outcome.code === undefined) expectPerfect([outcome], tokens);
        }
      }
    };
    let kills = 0;
    const churning = async (): Promise<void> => {
      while (going()) {
        const id = `w${1 + Math.floor(random.next() * 4)}`;
        const worker = fleet.workers.get(id)!;
        const kind = random.next();
        kills++;
        if (kind < 0.4) worker.signal("SIGKILL");
        else if (kind < 0.7) worker.signal("SIGTERM");
        else {
          // Frozen, then dead: nobody says good-bye.
          worker.signal("SIGSTOP");
          await new Promise((resolve) => setTimeout(resolve, random.next() * 3_000));
          worker.signal("SIGKILL");
        }
        await worker.exited(45_000);
        await fleet.add(id);
        await new Promise((resolve) => setTimeout(resolve, random.next() * 2_000));
      }
    };
    await Promise.all([churning(), ...Array.from({ length: REQUESTS_AT_ONCE }, asking)]);

    const codes: Record<string, number> = {};
    for (const { code = "success" } of outcomes) codes[code] = (codes[code] ?? 0) + 1;
    console.log(`churn: ${outcomes.length} requests, ${kills} workers gone: ${JSON.stringify(codes)}`);
    expect(outcomes.length).toBeGreaterThan(2_000);
    expect(kills).toBeGreaterThan(20);
    for (const { code, done, durationMs } of outcomes) {
      if (code !== undefined) expect(Object.keys(errorCatalogue)).toContain(code);
      expect(done).toBe(true);
      expect(durationMs).toBeLessThan(DEADLINE_MS + SLACK_MS);
    }
    // Nothing is left over.
    expect(await fleet.frontend.inFlight()).toBe(0);
  },
  CHURN_MS + 120_000,
);

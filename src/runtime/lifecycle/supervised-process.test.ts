import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { seededRandom } from "../../protocol/random.ts";
import { Backoff } from "./backoff.ts";
import {
  EXIT_CONFIGURATION,
  parentState,
  SupervisedProcess,
  type SupervisedProcessOptions,
  type SupervisedState,
} from "./supervised-process.ts";

const logLines: string[] = [];
const logger = pino({ level: "warn" }, { write: (line: string) => void logLines.push(line) });
let folder: string;
let running: SupervisedProcess[] = [];

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "stator-supervised-"));
});
afterEach(async () => {
  await Promise.all(running.map((child) => child.stop(100)));
  running = [];
  logLines.length = 0;
});
afterAll(() => rmSync(folder, { recursive: true }));

function supervise(code: string, extra: Partial<SupervisedProcessOptions> = {}) {
  const script = join(folder, `${Math.random().toString(36).slice(2)}.mjs`);
  writeFileSync(script, code);
  const states: SupervisedState[] = [];
  const child = new SupervisedProcess({
    name: "child",
    script,
    args: [],
    env: {},
    logger,
    backoff: new Backoff({ initialMs: 10, maxMs: 50 }, seededRandom(1)),
    onState: (state) => states.push(state),
    ...extra,
  });
  running.push(child);
  child.start();
  return { child, states };
}

/** Says "ready" again and again. */
const talkative = 'setInterval(() => process.send({ kind: "ready" }), 20);';
const alive = 'process.send({ kind: "ready" }); setInterval(() => process.send({ kind: "alive" }), 20);';
const until = (condition: () => boolean) =>
  vi.waitFor(() => expect(condition()).toBe(true), { timeout: 10_000, interval: 10 });

describe("SupervisedProcess", () => {
  it("starts a killed child again", async () => {
    const { child } = supervise(alive);
    await until(() => child.state === "ready");
    const first = child.pid!;
    process.kill(first, "SIGKILL");
    await until(() => child.state === "ready" && child.pid !== first);
    expect(child.restarts).toBe(1);
  });

  it("kills a child that hangs, and starts it again", async () => {
    const { child } = supervise(alive, { silenceTimeoutMs: 1_000 });
    await until(() => child.state === "ready");
    const first = child.pid!;
    process.kill(first, "SIGSTOP");
    await until(() => child.state === "ready" && child.pid !== first);
  });

  it("does not start a misconfigured child again", async () => {
    const { child } = supervise(`process.exit(${EXIT_CONFIGURATION})`);
    await until(() => child.state === "failed");
    expect(child.restarts).toBe(0);
    expect(logLines.join()).toContain("not started again");
  });

  it("stops a child that ignores SIGTERM", async () => {
    const { child } = supervise(`process.on("SIGTERM", () => {}); ${alive}`);
    await until(() => child.state === "ready");
    await child.stop(50);
    expect(child.state).toBe("stopped");
  });

  it("does not take its own standing still for the child's", async () => {
    const { child, states } = supervise(talkative, { silenceTimeoutMs: 600 });
    await until(() => child.state === "ready");
    const first = child.pid;
    // From an immediate the event loop comes to its timers first, and to the messages that came meanwhile only then.
    await new Promise((resolve) => setImmediate(resolve));
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000);
    const heard = states.length;
    await until(() => states.length > heard);
    expect(logLines).toEqual([]);
    expect(child.pid).toBe(first);
  });

  it("tries again when the process cannot be started, whether spawn tells by an event or throws", async () => {
    const { execPath } = process;
    const args: string[] = [];
    try {
      process.execPath = "/no/such/node";
      const { child } = supervise(alive, { args });
      await until(() => child.restarts >= 2);
      expect(logLines.join()).toContain("ENOENT");
      args.push("\0"); // spawn throws because of it, inside the restart timer
      await until(() => logLines.some((line) => line.includes("null bytes")));
      const { restarts } = child;
      await until(() => child.restarts > restarts);
      args.length = 0;
      process.execPath = execPath;
      await until(() => child.state === "ready");
    } finally {
      process.execPath = execPath;
    }
  });

  it("stops at once when the process could not be started", async () => {
    const { execPath } = process;
    try {
      process.execPath = "/no/such/node";
      const { child, states } = supervise(alive);
      await child.stop(60_000);
      expect(states).toEqual(["starting", "stopped"]);
    } finally {
      process.execPath = execPath;
    }
  });

  it("starts a child again that finds its configuration wrong after it has been ready", async () => {
    const marker = join(folder, "was-here");
    const { child } = supervise(`
      import { existsSync, writeFileSync } from "node:fs";
      if (existsSync(${JSON.stringify(marker)})) process.exit(${EXIT_CONFIGURATION});
      writeFileSync(${JSON.stringify(marker)}, "");
      ${alive}
    `);
    await until(() => child.state === "ready");
    process.kill(child.pid!, "SIGKILL");
    await until(() => child.restarts >= 3);
    expect(logLines.some((line) => line.includes(`"code":${EXIT_CONFIGURATION}`))).toBe(true);
    rmSync(marker);
    await until(() => child.state === "ready");
  });
});

it("a process knows whether it has a parent that listens", () => {
  const send = (): boolean => true;
  expect(parentState({ connected: false } as NodeJS.Process)).toBe("none");
  expect(parentState({ send, connected: true })).toBe("connected");
  expect(parentState({ send, connected: false })).toBe("gone");
});

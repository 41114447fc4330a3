import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { MockEngine } from "../../engines/mocker/index.ts";
import { fixedTiming, parseFaultScript } from "../../mocker/index.ts";
import { createLogger } from "../../runtime/telemetry/log.ts";
import { Config } from "../config/config.ts";
import { checkFleetFaults, configuredFaults, LiveFaults } from "./live-faults.ts";

const silent = createLogger({ level: "silent", format: "json", part: "test" });

/** A mock engine that notes what is done to it. */
function notingEngine() {
  const engine = new MockEngine({ settings: { timing: fixedTiming(2, 1) } });
  const state = { frozen: false, factor: 1, drops: false };
  vi.spyOn(engine.faults, "freeze").mockImplementation((frozen) => void Object.assign(state, { frozen }));
  vi.spyOn(engine.faults, "slowDown").mockImplementation((factor) => void Object.assign(state, { factor }));
  vi.spyOn(engine.faults, "dropEvents").mockImplementation((drop) => void Object.assign(state, { drops: drop }));
  return { engine, state };
}

describe("on the clock", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  function live(script: unknown, more: { workers?: string[]; agoMs?: number } = {}) {
    const { workers = ["worker-1"], agoMs = 0 } = more;
    const kill = vi.fn();
    const sinceMs = Date.now() - agoMs;
    const faults = new LiveFaults({ script: parseFaultScript(script), workers, sinceMs, logger: silent, kill });
    return { faults, kill };
  }

  test("each fault begins and ends at its time, for the workers that it names", () => {
    const { faults, kill } = live(
      [
        { at: 100, freeze: "worker-1", for: 50 },
        { at: 100, slowDown: ["worker-1", "worker-2"], factor: 4, for: 100 },
        { at: 120, slowDown: "worker-2", factor: 2, for: 30 },
        { at: 200, dropEvents: "all" },
        { at: 210, cutLink: "all", for: 10 },
        { at: 300, kill: "worker-9" },
      ],
      { workers: ["worker-1", "worker-2"] },
    );
    const [one, two] = [notingEngine(), notingEngine()];
    faults.adopt("worker-1", one.engine);
    faults.adopt("worker-2", two.engine);
    faults.start();
    const at = (ms: number) => {
      vi.advanceTimersByTime(ms - at.now);
      at.now = ms;
      return [{ ...one.state }, { ...two.state }, faults.cut.isCut] as const;
    };
    at.now = 0;
    const calm = { frozen: false, factor: 1, drops: false };
    expect(at(99)).toEqual([calm, calm, false]);
    expect(at(101)).toEqual([{ ...calm, frozen: true, factor: 4 }, { ...calm, factor: 4 }, false]);
    expect(at(121)).toEqual([{ ...calm, frozen: true, factor: 4 }, { ...calm, factor: 8 }, false]);
    expect(at(151)).toEqual([{ ...calm, factor: 4 }, { ...calm, factor: 4 }, false]);
    expect(at(201)).toEqual([{ ...calm, drops: true }, { ...calm, drops: true }, false]);
    expect(at(211)[2]).toBe(true);
    expect(at(221)[2]).toBe(false);
    at(10_000);
    expect(kill).not.toHaveBeenCalled();
    expect(vi.getTimerCount()).toBe(0);
  });

  test("a kill takes the process, and once: the next process begins behind it", () => {
    const script = [{ at: "2m", kill: "worker-1", restartAfter: "10s" }];
    const { faults, kill } = live(script);
    faults.start();
    vi.advanceTimersByTime(119_000);
    expect(kill).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1_001);
    expect(kill).toHaveBeenCalledTimes(1);
    faults.stop();
    const next = live(script, { agoMs: 120_500 });
    next.faults.start();
    vi.advanceTimersByTime(200_000);
    expect(next.kill).not.toHaveBeenCalled();
  });

  test("a process that begins late goes on with what still holds, and with that only", () => {
    const script = [
      { at: 0, freeze: "worker-1", for: 1_000 },
      { at: 500, slowDown: "all", factor: 3, for: 1_000 },
      { at: 700, cutLink: "worker-1", for: 1_000 },
    ];
    const { faults } = live(script, { agoMs: 1_200 });
    faults.start();
    expect(faults.cut.isCut).toBe(true);
    // An engine takes time to load, and may be replaced by another.
    const { engine, state } = notingEngine();
    faults.adopt("worker-1", engine);
    expect(state).toEqual({ frozen: false, factor: 3, drops: false });
    vi.advanceTimersByTime(301);
    expect(state.factor).toBe(1);
    expect(faults.cut.isCut).toBe(true);
    faults.stop();
    expect(faults.cut.isCut).toBe(false);
  });
});

describe("what cannot be done is said before anything starts", () => {
  const folder = mkdtempSync(join(tmpdir(), "stator-test-"));
  process.once("exit", () => rmSync(folder, { recursive: true, force: true }));

  function config(script: string, ...sets: string[]): Config {
    const path = join(folder, "faults.yaml");
    writeFileSync(path, script);
    return Config.load({ flags: new Map(), sets: [`faults.script=${path}`, ...sets], env: {} });
  }

  const mocker = "engine.kind=mocker";

  test("serve", () => {
    checkFleetFaults(config("- { at: 1s, freeze: worker-2, for: 1s }", mocker));
    checkFleetFaults(config("- { at: 1s, kill: worker-2 }", "engine.kind=echo"));
    checkFleetFaults(config("- { at: 1s, freeze: worker-1 }", mocker, "discovery=memory"));
    checkFleetFaults(config("- { at: 1s, kill: all }", mocker, "discovery=etcd://127.0.0.1:2379"));
    for (const [script, sets, message] of [
      ["- { at: 1s, kill: worker-3 }", [mocker], /faults\[0\]\.kill: there is no worker "worker-3"/],
      ["- { at: soon, kill: all }", [mocker], /faults\.yaml: faults\[0\]\.at: is "soon"/],
      ["- { at: 1s, freeze: all }", ["engine.kind=echo"], /faults\[0\]\.freeze: only the engine mocker .* not echo/],
      ["- { at: 1s, cutLink: all }", [mocker, "discovery=memory"], /faults\[0\]\.cutLink: with discovery memory/],
      ["- { at: 1s, kill: worker-1 }", [mocker, "discovery=etcd://h:2379"], /random names; write all/],
    ] as const) {
      expect(() => checkFleetFaults(config(script, ...sets))).toThrow(message);
    }
  });

  test("a worker; names of others are none of its business", () => {
    const one = (script: string, ...sets: string[]) => configuredFaults(config(script, ...sets), ["w1"], silent);
    expect(one("- { at: 1s, kill: w1 }", "engine.kind=echo")).toBeDefined();
    expect(one("- { at: 1s, freeze: w7 }", "engine.kind=echo")).toBeDefined();
    expect(() => one("- { at: 1s, freeze: [w1, w7] }", "engine.kind=echo")).toThrow(/only the engine mocker/);
    expect(configuredFaults(Config.load({ flags: new Map(), sets: [], env: {} }), ["w1"], silent)).toBeUndefined();
  });

  test("many workers in a process freeze one by one, and die together", () => {
    const two = (script: string) => configuredFaults(config(script, mocker), ["w-1", "w-2"], silent);
    expect(two("- { at: 1s, freeze: w-1 }")).toBeDefined();
    expect(two("- { at: 1s, kill: [w-2, w-1, w-3] }")).toBeDefined();
    expect(two("- { at: 1s, cutLink: all }")).toBeDefined();
    for (const kind of ["kill", "cutLink"]) {
      expect(() => two(`- { at: 1s, ${kind}: w-2 }`)).toThrow(`faults[0].${kind}: w-2 shares its process`);
    }
  });
});

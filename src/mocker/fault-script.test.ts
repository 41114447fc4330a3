import { describe, expect, it } from "vitest";
import { ActiveFaults } from "./active-faults.ts";
import { checkNames, namedWorkers, parseFaultScript } from "./fault-script.ts";

describe("a fault script", () => {
  it("becomes beginnings and ends in order of time, ends first", () => {
    const { points } = parseFaultScript([
      { at: "30s", freeze: "b", for: "2m" },
      { at: "10s", kill: "a", restartAfter: "20s" },
      { at: 250, slowDown: ["a", "b", "a"], factor: 4 },
      { at: "1h", cutLink: "all", for: "0.5s" },
    ]);
    const shown = points.map(({ atMs, begins, kind, workers }) => [atMs, begins ? "begins" : "ends", kind, workers]);
    expect(shown).toEqual([
      [250, "begins", "slowDown", ["a", "b"]],
      [10_000, "begins", "kill", ["a"]],
      [30_000, "ends", "kill", ["a"]],
      [30_000, "begins", "freeze", ["b"]],
      [150_000, "ends", "freeze", ["b"]],
      [3_600_000, "begins", "cutLink", "all"],
      [3_600_500, "ends", "cutLink", "all"],
    ]);
  });

  it("may be a map with a list under faults", () => {
    expect(parseFaultScript({ faults: [{ at: 1, dropEvents: "all" }] }).points).toHaveLength(1);
    expect(parseFaultScript([]).points).toEqual([]);
  });

  it.each<[unknown, RegExp]>([
    [undefined, /^faults: must be a list/],
    ["kill everybody", /^faults: must be a list/],
    [{ fault: [] }, /Unknown key "fault" in a fault script; did you mean faults\?/],
    [[7], /^faults\[0\]: must be a map/],
    [[{ at: 1 }], /^faults\[0\]: has no action; use one of kill, freeze, slowDown, dropEvents, cutLink/],
    [[{ at: 1, kil: "a" }], /Unknown key "kil" in faults\[0\]; did you mean kill\?/],
    [[{ at: 1, kill: "a", freeze: "a" }], /^faults\[0\]: has kill and freeze; use one entry for each/],
    [[{ at: 1, kill: "a", for: 5 }], /^faults\[0\]\.for: kill has restartAfter instead/],
    [[{ at: 1, freeze: "a", restartAfter: 5 }], /Unknown key "restartAfter" in faults\[0\]/],
    [[{ at: 1, freeze: "a", factor: 2 }], /Unknown key "factor" in faults\[0\]/],
    [[{ kill: "a" }], /^faults\[0\]\.at: is missing; give milliseconds/],
    [[{ at: "30 sec", kill: "a" }], /^faults\[0\]\.at: is "30 sec"; give milliseconds/],
    [[{ at: -1, kill: "a" }], /^faults\[0\]\.at: is -1/],
    [[{ at: Number.NaN, kill: "a" }], /^faults\[0\]\.at/],
    [[{ at: "9000h", kill: "a" }], /at most 365 days/],
    [[{ at: 1, freeze: "a", for: 0 }], /^faults\[0\]\.for: must be longer than 0/],
    [[{ at: 1, freeze: [] }], /^faults\[0\]\.freeze: must be the name of a worker/],
    [[{ at: 1, freeze: ["a", "all"] }], /write all alone/],
    [[{ at: 1, slowDown: "a" }], /^faults\[0\]\.factor: is missing/],
    [[{ at: 1, slowDown: "a", factor: 0 }], /^faults\[0\]\.factor: is 0; give a number from 0.001/],
    [Array.from({ length: 10_001 }, () => ({ at: 1, kill: "a" })), /has 10001 entries; at most 10000/],
  ])("that is wrong is refused with entry and field: %#", (document, message) => {
    expect(() => parseFaultScript(document)).toThrow(message);
  });

  it("names workers that must be there", () => {
    const script = parseFaultScript([
      { at: 1, kill: "all" },
      { at: 2, freeze: ["a", "c"] },
    ]);
    expect(namedWorkers(script)).toEqual(["a", "c"]);
    expect(() => checkNames(script, ["a", "c"])).not.toThrow();
    expect(() => checkNames(script, ["a", "b"])).toThrow(
      'faults[1].freeze: there is no worker "c"; the workers are a, b.',
    );
  });
});

it("faults that overlap hold until the last one ends, and slow-downs multiply", () => {
  const { points } = parseFaultScript([
    { at: 0, freeze: "a", for: 10 },
    { at: 5, freeze: "a", for: 10 },
    { at: 20, slowDown: "a", factor: 4, for: 20 },
    { at: 30, slowDown: "a", factor: 3, for: 20 },
  ]);
  const active = new ActiveFaults();
  const seen = points.map((point) => [point.atMs, active.apply(point), active.has("freeze"), active.factor]);
  expect(seen).toEqual([
    [0, true, true, 1],
    [5, false, true, 1],
    [10, false, true, 1],
    [15, true, false, 1],
    [20, true, false, 4],
    [30, true, false, 12],
    [40, true, false, 3],
    [50, true, false, 1],
  ]);
});

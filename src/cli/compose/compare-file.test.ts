import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { readCompareFile } from "./compare-file.ts";
import type { ConfigurationOptions } from "./replay-configuration.ts";

const folder = mkdtempSync(join(tmpdir(), "stator-compare-"));
afterAll(() => rmSync(folder, { recursive: true }));
const path = join(folder, "fleets.yaml");

const commandLine: ConfigurationOptions = {
  workers: 4,
  kvBandwidth: 64,
  routerMode: "round-robin",
  seed: 1,
  arrivalSpeed: 1,
  flavour: "vllm",
  timing: "polynomial",
  hardware: "h100_sxm",
  tensorParallel: 1,
  blockSize: 64,
};

function read(text: string) {
  writeFileSync(path, text);
  return readCompareFile(path, commandLine);
}

it("each is what the command line says, with what it says itself instead", () => {
  const [same, other] = read("- { name: same }\n- { name: other, routerMode: random, seed: 7, tensorParallel: 2 }");
  expect(same).toEqual({ name: "same", options: commandLine });
  expect(other!.options).toEqual({ ...commandLine, routerMode: "random", seed: 7, tensorParallel: 2 });
});

it("who names workers of one kind does not get those of the command line", () => {
  const [apart] = read("- { name: apart, prefillWorkers: 1, decodeWorkers: 3 }");
  expect(apart!.options).toMatchObject({ prefillWorkers: 1, decodeWorkers: 3 });
  expect(apart!.options.workers).toBeUndefined();
});

it("paths are relative to the file", () => {
  const [one] = read("- { name: one, timing: table.json, modelConfig: m/config.json, faults: /abs/faults.yaml }");
  expect(one!.options).toMatchObject({
    timing: join(folder, "table.json"),
    modelConfig: join(folder, "m/config.json"),
    faults: "/abs/faults.yaml",
  });
  expect(read("- { name: one, timing: roofline }")[0]!.options.timing).toBe("roofline");
});

describe("what is wrong", () => {
  it.each([
    ["workers: 2", /write a list of 1 to 50/],
    ["[]", /write a list of 1 to 50/],
    ["- 5", /\[0\]: write a map/],
    ["- { workers: 2 }", /\[0\]\.name: a text/],
    ["- { name: a, worker: 2 }", /\[0\] \(a\): there is no option "worker"\. Did you mean workers/],
    ["- { name: a, __proto__: 2 }", /\[0\] \(a\): there is no option "__proto__"/],
    ["- { name: a, workers: -2 }", /\[0\] \(a\)\.workers: /],
    ["- { name: a, routerMode: direct }", /\[0\] \(a\)\.routerMode: /],
    ["- { name: a }\n- { name: a }", /\[1\]\.name: "a" stands there twice/],
    ["- name: a\n  - b", /fleets\.yaml: /],
    ["- &a [*a]", /fleets\.yaml/],
  ])("%s", (text, message) => {
    expect(() => read(text)).toThrow(message);
  });

  it("no such file", () => {
    expect(() => readCompareFile(join(folder, "none"), commandLine)).toThrow(/--compare .*none: ENOENT/);
  });
});

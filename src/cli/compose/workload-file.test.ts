import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { readTrace } from "./trace-file.ts";

const folder = mkdtempSync(join(tmpdir(), "stator-workload-"));
afterAll(() => rmSync(folder, { recursive: true }));

const recorded = Array.from({ length: 200 }, (_, i) => ({
  timestamp: 100 * i,
  input_length: 1_100 + (i % 5),
  output_length: 10 + (i % 3),
  hash_ids: [0, 1 + (i % 2), 100 + i],
}));
writeFileSync(join(folder, "recorded.jsonl"), recorded.map((row) => JSON.stringify(row)).join("\n"));

function workload(text: string, requests = Number.POSITIVE_INFINITY): Promise<TraceRequest[]> {
  writeFileSync(join(folder, "workload.yaml"), text);
  return readTrace({ name: "workload", folder, requests });
}

/** Requests per second from one time to another. */
function rate(requests: readonly TraceRequest[], fromS: number, toS: number): number {
  const within = requests.filter(({ arrivalMs }) => arrivalMs >= fromS * 1000 && arrivalMs < toS * 1000);
  return within.length / (toS - fromS);
}

describe("generated", () => {
  it.each(["constant: 20", "poisson: 20"])("%s", async (arrivals) => {
    const requests = await workload(
      `{ requests: 2000, arrivals: { ${arrivals} }, input: 300, output: { min: 5, max: 9 } }`,
    );
    expect(requests).toHaveLength(2_000);
    expect(rate(requests, 0, 90)).toBeCloseTo(20, -0.5);
    expect(new Set(requests.map(({ outputTokens }) => outputTokens))).toEqual(new Set([5, 6, 7, 8, 9]));
    expect(requests.every(({ inputTokens }) => inputTokens === 300)).toBe(true);
  });

  it("a sine, and bursts", async () => {
    const common = "input: { mean: 500, sigma: 0.5 }, output: 3";
    const sine = await workload(
      `{ requests: 6000, arrivals: { sine: { min: 5, max: 55, periodSeconds: 200 } }, ${common} }`,
    );
    expect(rate(sine, 30, 70)).toBeGreaterThan(2 * rate(sine, 130, 170));
    const bursts = await workload(
      `{ requests: 6000, arrivals: { bursts: { rate: 5, burst: 80, everySeconds: 100, burstSeconds: 20 } }, ${common} }`,
    );
    expect(rate(bursts, 100, 120)).toBeGreaterThan(8 * rate(bursts, 125, 195));
    const mean = sine.reduce((sum, { inputTokens }) => sum + inputTokens, 0) / sine.length;
    expect(mean).toBeGreaterThan(450);
    expect(mean).toBeLessThan(550);
  });

  it("sessions with shared prefixes; the same seed gives the same, another one another", async () => {
    const text = (seed: number) =>
      `{ requests: 90, arrivals: { poisson: 1 }, input: 640, output: 64, turns: 3, delayMs: 500, sharedPrefixRatio: 0.5, prefixGroups: 2, seed: ${seed} }`;
    const one = await workload(text(1));
    expect(one.filter(({ delayMs }) => delayMs === 500)).toHaveLength(60);
    expect(new Set(one.map(({ blockIds }) => blockIds[0])).size).toBe(2);
    expect(await workload(text(1))).toEqual(one);
    expect(await workload(text(2))).not.toEqual(one);
    expect(await workload(text(1), 7)).toEqual(one.slice(0, 7));
  });
});

it("synthesized: what the prompts of a recorded trace share, at twice the rate", async () => {
  const requests = await workload("{ from: recorded, requests: 1000, speedup: 2 }");
  expect(requests).toHaveLength(1_000);
  expect(requests.at(-1)!.arrivalMs).toBeCloseTo(50 * 999, -1);
  expect(new Set(requests.map(({ blockIds }) => blockIds[0])).size).toBe(1);
  expect(new Set(requests.map(({ blockIds }) => blockIds[1])).size).toBe(2);
  expect(new Set(requests.map(({ blockIds }) => blockIds[2])).size).toBe(1_000);
});

it.each([
  ["- 1", /write a map/],
  ["requests: 5", /workload\.yaml: arrivals: write \{ constant: RATE \}/],
  ["{ requests: 5, arrivals: { poisson: 0 }, input: 1, output: 1 }", /arrivals\.poisson: /],
  ["{ requests: 5, arrivals: { poisson: 1 }, input: { min: 9, max: 2 }, output: 1 }", /input: write/],
  ["{ requests: 0, arrivals: { poisson: 1 }, input: 1, output: 1 }", /requests: /],
  ["{ requests: 5, arrivals: { poisson: 1 }, input: 1, output: 1, turn: 2 }", /"turn"/],
  ["{ from: recorded, requests: 5, rootMultiplier: 0.5 }", /rootMultiplier: /],
  ["{ from: nowhere, requests: 5 }", /no trace "nowhere"/],
  ["{ from: workload.yaml, requests: 5 }", /from: name a recorded trace/],
  ["requests: [", /workload\.yaml: /],
])("%s is refused", async (text, message) => {
  await expect(workload(text)).rejects.toThrow(message);
});

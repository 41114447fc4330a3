import { afterEach, expect, test } from "vitest";
import { Canary, type CanaryOptions } from "./canary.ts";

const canaries: Canary[] = [];
afterEach(() => {
  for (const canary of canaries.splice(0)) canary.stop();
});

function start(options: Partial<CanaryOptions>): {
  canary: Canary;
  results: (string | undefined)[];
  probes: () => number;
} {
  const results: (string | undefined)[] = [];
  let probes = 0;
  const canary = new Canary({
    idleMs: 10,
    timeoutMs: 5_000,
    onResult: (problem) => results.push(problem),
    ...options,
    probe: async (signal) => {
      probes++;
      await options.probe?.(signal);
    },
  });
  canaries.push(canary);
  canary.start();
  return { canary, results, probes: () => probes };
}

async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + 10_000;
  while (!condition()) {
    if (performance.now() > end) throw new Error("waited in vain");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

test("the idle is probed again and again, the busy is not", async () => {
  const { canary, results, probes } = start({});
  await until(() => probes() >= 3);
  const end = canary.begin();
  const before = probes();
  await new Promise((resolve) => setTimeout(resolve, 50)); // five idle times
  expect(probes()).toBeLessThanOrEqual(before + 1); // one may have been under way
  end(true);
  await until(() => probes() >= before + 2);
  expect(new Set(results)).toEqual(new Set([undefined]));
});

test("a probe that fails or hangs is told, and so is the next one that works", async () => {
  let mode: "throw" | "hang" | "fine" = "throw";
  const { results } = start({
    timeoutMs: 30,
    probe: (signal) =>
      mode === "fine"
        ? Promise.resolve()
        : mode === "throw"
          ? Promise.reject(new Error("broken"))
          : new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  });
  await until(() => results.includes("broken"));
  mode = "hang";
  await until(() => results.some((it) => it?.includes("over 30 ms") === true));
  mode = "fine";
  await until(() => results.at(-1) === undefined);
});

test("work that shows that all is well ends the problem; the mere beginning of work does not", async () => {
  const { canary, results } = start({ probe: () => Promise.reject(new Error("broken")) });
  await until(() => results.at(-1) === "broken");
  const end = canary.begin();
  expect(results.at(-1)).toBe("broken");
  end(true);
  expect(results.at(-1)).toBeUndefined();
});

test("busy without progress is a stall, progress ends it, and the next stall is told again", async () => {
  const { canary, results } = start({ stallMs: 30, idleMs: 60_000 });
  const end = canary.begin();
  const other = canary.begin();
  await until(() => results.at(-1)?.startsWith("2 calls run") === true);
  canary.progress();
  expect(results.at(-1)).toBeUndefined();
  other(true);
  await until(() => results.at(-1)?.startsWith("1 calls run") === true);
  end(true);
  expect(results.at(-1)).toBeUndefined();
});

test("after stop nothing is told", async () => {
  const { canary, results, probes } = start({});
  await until(() => probes() >= 1);
  canary.stop();
  const told = results.length;
  canary.begin()(true);
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect(results.length).toBe(told);
});

test("before start nothing is probed, also when work comes and goes", async () => {
  let probes = 0;
  const canary = new Canary({ idleMs: 1, probe: async () => void probes++, onResult: () => {} });
  canary.begin()(true);
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect(probes).toBe(0);
  const probed = new Promise<void>((resolve) => {
    const started = new Canary({ idleMs: 1, probe: async () => resolve(), onResult: () => started.stop() });
    started.start();
  });
  await probed;
});

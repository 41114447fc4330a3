import { expect, it } from "vitest";
import { type ConfigurationOptions, configurationOf } from "./replay-configuration.ts";

const options: ConfigurationOptions = {
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

it.each([
  [{ arrivalSpeed: 5e-324 }, /--arrival-speed 5e-324 is not from 0.000001 to 1000000000/],
  [{ kvBandwidth: 1e300, prefillWorkers: 1, decodeWorkers: 1 }, /--kv-bandwidth 1e\+300 is not from/],
  [{ workers: 20_000 }, /At most 10000 workers/],
  [{ workers: 1, prefillWorkers: 1, decodeWorkers: 1 }, /Give either --workers/],
])("%j is refused, also from a comparison", (more, message) => {
  expect(() => configurationOf("a", { ...options, ...more })).toThrow(message);
});

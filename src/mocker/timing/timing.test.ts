import { describe, expect, it } from "vitest";
import { fixedTiming } from "./fixed.ts";
import { gpuNamed, gpus } from "./gpus.ts";
import { kvBytesPerToken, kvCapacityTokens, weightBytesPerGpu } from "./kv-capacity.ts";
import { modelShapeFromConfig, weightFormats } from "./model-shape.ts";
import { polynomialTiming } from "./polynomial.ts";
import { rooflineTiming } from "./roofline.ts";
import { tableTiming } from "./table.ts";
import { emptyPass, type PassShape } from "./timing.ts";

const prefill = (tokens: number, past = 0): PassShape => ({
  ...emptyPass(),
  prefillRequests: 1,
  prefillTokens: tokens,
  prefillPastTokens: past,
  prefillSquares: (past + tokens) ** 2 - past ** 2,
});

const decode = (requests: number, context: number, poolUsage = 0): PassShape => ({
  ...emptyPass(),
  decodeRequests: requests,
  decodeTokens: requests,
  decodeContextTokens: requests * context,
  poolUsage,
});

const llamaConfig = {
  model_type: "llama",
  num_hidden_layers: 80,
  hidden_size: 8192,
  num_attention_heads: 64,
  num_key_value_heads: 8,
  intermediate_size: 28672,
  vocab_size: 32000,
};

describe("the polynomial", () => {
  it("has the published values", () => {
    expect(polynomialTiming.passMs(prefill(1024))).toBeCloseTo(32.5, 1);
    expect(polynomialTiming.passMs(decode(1, 1, 0.5))).toBeCloseTo(26.3, 1);
    expect(polynomialTiming.passMs(decode(99, 1, 1))).toBeCloseTo(34.0, 1);
  });

  it("adds a decode to a prefill that completes", () => {
    const pass = { ...prefill(1024), prefillsCompleted: 1 };
    expect(polynomialTiming.passMs(pass)).toBeCloseTo(32.5 + 5.74, 1);
  });
});

it("fixed times are what they are", () => {
  const timing = fixedTiming(10, 2);
  const mixed = { ...prefill(1), ...{ decodeRequests: 1 } };
  expect([prefill(7), decode(3, 3), mixed].map((pass) => timing.passMs(pass))).toEqual([10, 2, 12]);
});

describe("the table", () => {
  const table = {
    prefillTokens: [100, 200, 400],
    prefillMs: [10, 30, 50],
    decodeActiveTokens: [0, 1000],
    decodeContextTokens: [100, 300],
    decodeMs: [
      [10, 20],
      [30, 60],
    ],
  };

  it("interpolates, and goes on beyond its edges, but never below 1 ms", () => {
    const timing = tableTiming(table);
    expect([100, 150, 300, 500, 20].map((tokens) => timing.passMs(prefill(tokens)))).toEqual([10, 20, 40, 60, 1]);
    expect(timing.passMs(decode(5, 200))).toBeCloseTo(45); // 1000 active: half-way from 30 to 60
    expect(timing.passMs(decode(1, 100))).toBeCloseTo(12); // 100 active: a tenth of the way from 10 to 30
    expect(timing.passMs(decode(20, 100))).toBeCloseTo(50); // 2000 active: the slope goes on
  });

  it("refuses axes that do not increase, and rows that do not fit", () => {
    expect(() => tableTiming({ ...table, prefillTokens: [1, 1, 2] })).toThrow("prefillTokens");
    expect(() => tableTiming({ ...table, prefillMs: [1] })).toThrow("prefillMs");
    expect(() => tableTiming({ ...table, decodeMs: [[1], [2]] })).toThrow("decodeMs");
    expect(() => tableTiming({ ...table, decodeContextTokens: [] })).toThrow("decodeContextTokens");
  });
});

describe("a model's shape", () => {
  it("is read from a Llama config", () => {
    expect(modelShapeFromConfig(llamaConfig)).toMatchObject({ layers: 80, kvHeads: 8, headSize: 128, gated: true });
  });

  it("is read from BLOOM's names, without a gate, with four times the width", () => {
    const shape = modelShapeFromConfig({
      model_type: "bloom",
      n_layer: 70,
      n_embed: 14336,
      n_head: 112,
      vocab_size: 250880,
    });
    expect(shape).toMatchObject({ layers: 70, kvHeads: 112, intermediate: 57344, gated: false });
  });

  it("knows experts, latent attention, windows, 8-bit weights, and configs with a text part", () => {
    const shape = modelShapeFromConfig({
      quantization_config: { quant_method: "fp8" },
      text_config: {
        ...llamaConfig,
        n_routed_experts: 256,
        num_experts_per_tok: 8,
        moe_intermediate_size: 2048,
        n_shared_experts: 1,
        first_k_dense_replace: 3,
        kv_lora_rank: 512,
        qk_rope_head_dim: 64,
        sliding_window: 4096,
      },
    });
    expect(shape.experts).toEqual({
      count: 256,
      perToken: 8,
      intermediate: 2048,
      sharedIntermediate: 2048,
      denseLayers: 3,
    });
    expect(shape).toMatchObject({ latent: { rank: 512, ropeSize: 64 }, window: 4096, weights: weightFormats.fp8 });
    expect(
      modelShapeFromConfig({ ...llamaConfig, sliding_window: 9, use_sliding_window: false }).window,
    ).toBeUndefined();
  });

  it("names what is missing or wrong", () => {
    expect(() => modelShapeFromConfig([])).toThrow("hidden_size is missing");
    expect(() => modelShapeFromConfig({ ...llamaConfig, vocab_size: "many" })).toThrow("vocab_size must be a number");
    expect(() => modelShapeFromConfig(null)).toThrow("JSON object");
  });
});

describe("the roofline", () => {
  const model = modelShapeFromConfig(llamaConfig);
  const gpu = gpus.a100_sxm;

  it("is within 10 % of a measured decode, 15 % of a measured prefill", () => {
    // Medians of SplitwiseSim's perf_model.csv: Llama-2-70B on 4 A100, prompt 1024: 227 ms; batch 16 at 512 + 64: 48.5 ms.
    const timing = rooflineTiming({ model, gpu, tensorParallel: 4 });
    expect(Math.abs(timing.passMs(prefill(1024)) / 227 - 1)).toBeLessThan(0.15);
    expect(Math.abs(timing.passMs(decode(16, 576)) / 48.5 - 1)).toBeLessThan(0.1);
  });

  it("takes longer for more work, and less on more or faster GPUs", () => {
    const timing = rooflineTiming({ model, gpu, tensorParallel: 4 });
    const passes = [prefill(512), prefill(1024), prefill(1024, 8192), prefill(4096)];
    const times = passes.map((pass) => timing.passMs(pass));
    expect(times).toEqual(times.toSorted((a, b) => a - b));
    expect(timing.passMs(decode(64, 4096))).toBeGreaterThan(timing.passMs(decode(64, 512)));
    expect(rooflineTiming({ model, gpu, tensorParallel: 8 }).passMs(prefill(4096))).toBeLessThan(times[3]!);
    const faster = rooflineTiming({ model, gpu: gpus.h200_sxm, tensorParallel: 4 });
    expect(faster.passMs(prefill(4096))).toBeLessThan(times[3]!);
  });

  it("reads the weights once in a pass with prefill and decode", () => {
    const timing = rooflineTiming({ model, gpu, tensorParallel: 4 });
    const mixed = { ...prefill(256), decodeRequests: 16, decodeTokens: 16, decodeContextTokens: 16 * 512 };
    expect(timing.passMs(mixed)).toBeLessThan(0.8 * (timing.passMs(prefill(256)) + timing.passMs(decode(16, 512))));
    expect(timing.passMs(mixed)).toBeGreaterThan(timing.passMs(prefill(256)));
  });

  it("reads only the experts that are used", () => {
    const sparse = modelShapeFromConfig({
      ...llamaConfig,
      num_local_experts: 64,
      num_experts_per_tok: 2,
      intermediate_size: 4096,
    });
    const timing = rooflineTiming({ model: sparse, gpu, tensorParallel: 4 });
    expect(timing.passMs(decode(32, 512))).toBeGreaterThan(1.3 * timing.passMs(decode(1, 512)));
  });

  it("ends attention at the window", () => {
    const windowed = rooflineTiming({ model: { ...model, window: 1024 }, gpu, tensorParallel: 4 });
    expect(windowed.passMs(decode(64, 8192))).toBe(windowed.passMs(decode(64, 4096)));
  });
});

describe("memory", () => {
  const model = modelShapeFromConfig(llamaConfig);

  it("counts weights and KV of a token", () => {
    expect(weightBytesPerGpu(model) / 2).toBeCloseTo(69e9, -9); // Llama-2-70B has 68.98 billion parameters
    expect(kvBytesPerToken(model)).toBe(2 * 8 * 128 * 80 * 2);
    expect(kvBytesPerToken(model, 16)).toBe(2 * 1 * 128 * 80 * 2); // a head cannot be divided
  });

  it("leaves the rest for KV: by hand for 4 A100", () => {
    // 80 GiB * 0.9 * 0.98 = 75.76 GB; weights 34.49 GB, activations 2 * 8192 * 8192 * 5 = 0.67 GB, 0.41 GB, 3.76 GB.
    const tokens = kvCapacityTokens({ model, gpu: gpus.a100_sxm, tensorParallel: 4 });
    expect(tokens / (36.43e9 / 81_920)).toBeCloseTo(1, 2);
    expect(kvCapacityTokens({ model, gpu: gpus.l40s })).toBe(0);
  });
});

it("a GPU is found by name, and a slip is corrected", () => {
  expect(gpuNamed("gb200")).toBe(gpus.gb200);
  expect(Object.keys(gpus).length).toBeGreaterThanOrEqual(8);
  expect(() => gpuNamed("h100-sxm")).toThrow("h100_sxm");
});

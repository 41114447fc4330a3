import { closest } from "../../protocol/closest.ts";
import { StatorError } from "../../protocol/errors.ts";

/** What a GPU can do, from its data sheet. Dense rates; links in one direction. */
export interface Gpu {
  readonly memoryBytesPerSecond: number;
  readonly memoryBytes: number;
  /** Floating point operations per second in 16 bit. 8 bit and 4 bit are multiples, see `ModelShape.weights`. */
  readonly flops: number;
  /** Speed of 8-bit and 4-bit arithmetic relative to 16 bit; 1 where the GPU has none. */
  readonly fp8: number;
  readonly fp4: number;
  /** To a GPU of the same machine, and to one of another. */
  readonly linkBytesPerSecond: number;
  readonly networkBytesPerSecond: number;
  readonly watts: number;
}

function gpu(
  memoryTBs: number,
  memoryGiB: number,
  tflops: number,
  [fp8, fp4]: readonly [number, number],
  [linkGBs, networkGBs]: readonly [number, number],
  watts: number,
): Gpu {
  return {
    memoryBytesPerSecond: memoryTBs * 1e12,
    memoryBytes: memoryGiB * 2 ** 30,
    flops: tflops * 1e12,
    fp8,
    fp4,
    linkBytesPerSecond: linkGBs * 1e9,
    networkBytesPerSecond: networkGBs * 1e9,
    watts,
  };
}

/** Values of the vendor's data sheets, as the reference's system descriptions list them. */
export const gpus = {
  a100_sxm: gpu(2.039, 80, 312, [1, 1], [300, 25], 400),
  h100_sxm: gpu(3.35, 80, 989, [2, 2], [450, 50], 700),
  h200_sxm: gpu(4.8, 141, 989, [2, 2], [450, 50], 700),
  l40s: gpu(0.864, 45, 362, [2, 2], [32, 50], 350),
  b200_sxm: gpu(7.7, 180, 2250, [2, 4], [900, 100], 1000),
  b300_sxm: gpu(7.75, 269, 2250, [2, 14000 / 2250], [900, 100], 1100),
  gb200: gpu(8.0, 185, 2500, [2, 4], [900, 900], 1200),
  gb300: gpu(8.0, 278, 2500, [2, 6], [900, 900], 1400),
} as const satisfies Record<string, Gpu>;

export type GpuName = keyof typeof gpus;

/** Throws `invalid_value` that names the nearest known one. */
export function gpuNamed(name: string): Gpu {
  if (Object.hasOwn(gpus, name)) return gpus[name as GpuName];
  const near = closest(name, Object.keys(gpus));
  const known = Object.keys(gpus).join(", ");
  const suggestion = near === undefined ? "" : `; did you mean ${near}?`;
  throw new StatorError("invalid_value", `Unknown GPU ${JSON.stringify(name)}${suggestion} Known: ${known}`, {
    param: "gpu",
  });
}

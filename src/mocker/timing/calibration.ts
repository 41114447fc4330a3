import type { Gpu } from "./gpus.ts";

/** What real kernels reach of a data sheet, and what a pass costs besides. */
export interface Calibration {
  /** Parts of the peak arithmetic, memory and link speed. */
  readonly compute: number;
  readonly memory: number;
  readonly link: number;
  /** Of each layer: launching its kernels. */
  readonly perLayerMs: number;
  /** Of each hop of a ring all-reduce, whatever it carries. */
  readonly perHopMs: number;
  /** Of each decoding sequence in a pass: sampling, and attention that reads scattered blocks. */
  readonly perSequenceMs: number;
}

/**
 * Fitted by tools/fit-roofline.mjs to measurements of Llama-2-70B (SplitwiseSim, perf_model.csv, MIT licence, Copyright
 * (c) 2024 Pratyush Patel): a serving stack of 2023. docs/mocker.md has the errors on what was not fitted.
 */
export const fittedCalibrations = {
  a100_sxm: { compute: 0.713, memory: 0.949, link: 0.36, perLayerMs: 0.243, perHopMs: 0.00721, perSequenceMs: 0.361 },
  h100_sxm: { compute: 0.6, memory: 0.925, link: 0.349, perLayerMs: 0.165, perHopMs: 0.00489, perSequenceMs: 0.278 },
} as const satisfies Record<string, Calibration>;

/** The fit of the generation of the GPU: of the A100 below 500 TFLOPS, of the H100 above. */
export function calibrationOf(gpu: Gpu): Calibration {
  return gpu.flops < 500e12 ? fittedCalibrations.a100_sxm : fittedCalibrations.h100_sxm;
}

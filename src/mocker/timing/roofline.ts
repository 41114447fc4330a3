import { type Calibration, calibrationOf } from "./calibration.ts";
import type { Gpu } from "./gpus.ts";
import type { ModelShape } from "./model-shape.ts";
import type { PassShape, TimingModel } from "./timing.ts";

export interface RooflineOptions {
  readonly model: ModelShape;
  readonly gpu: Gpu;
  /** GPUs that share each layer; of one machine. Default 1. */
  readonly tensorParallel?: number;
  /** GPUs among which experts are spread; tensor parallel otherwise. Default 1. */
  readonly expertParallel?: number;
  /** Default: the fitted one nearest to the GPU. */
  readonly calibration?: Calibration;
}

/**
 * How long a pass takes on given hardware: each operation at the speed of the slower of arithmetic and memory, at the
 * part of the data sheet's numbers that real kernels reach, and a fixed time for each layer (launches, Python):
 *
 *     ms = sum over operations of max(flops / (F * compute), bytes / (B * memory))  +  links  +  fixed parts
 *
 * A pass with prefill and decode reads its weights once. Formulas: the usual ones for transformer layers, per GPU.
 */
export function rooflineTiming(options: RooflineOptions): TimingModel {
  return new Roofline(options);
}

class Roofline implements TimingModel {
  readonly #model: ModelShape;
  readonly #calibration: Calibration;
  readonly #tensorParallel: number;
  readonly #expertParallel: number;
  readonly #heads: number;
  readonly #kvHeads: number;
  // Milliseconds per unit of work.
  readonly #msPerFlop: number;
  readonly #msPerFlop16: number;
  readonly #msPerByte: number;
  readonly #msPerLinkByte: number;

  constructor({
    model,
    gpu,
    tensorParallel = 1,
    expertParallel = 1,
    calibration = calibrationOf(gpu),
  }: RooflineOptions) {
    this.#model = model;
    this.#calibration = calibration;
    this.#tensorParallel = tensorParallel;
    this.#expertParallel = expertParallel;
    this.#heads = model.heads / tensorParallel;
    this.#kvHeads = Math.max(1, model.kvHeads / tensorParallel);
    const speed = { "16bit": 1, "8bit": gpu.fp8, "4bit": gpu.fp4 }[model.weights.arithmetic];
    this.#msPerFlop16 = 1000 / (gpu.flops * calibration.compute);
    this.#msPerFlop = this.#msPerFlop16 / speed;
    this.#msPerByte = 1000 / (gpu.memoryBytesPerSecond * calibration.memory);
    this.#msPerLinkByte = 1000 / (gpu.linkBytesPerSecond * calibration.link);
  }

  passMs(pass: Readonly<PassShape>): number {
    const { layers, hidden, vocabulary, experts } = this.#model;
    const { perLayerMs, perSequenceMs } = this.#calibration;
    const tokens = pass.prefillTokens + pass.decodeTokens;
    const sampled = pass.prefillsCompleted + pass.decodeTokens;
    const expertLayers = experts === undefined ? 0 : layers - experts.denseLayers;
    const attention = this.#projectionsMs(tokens) + this.#prefillAttentionMs(pass) + this.#decodeAttentionMs(pass);
    const around = this.#elementwiseMs(tokens) + this.#allReduceMs(tokens) + perLayerMs;
    const dense = layers > expertLayers ? this.#mlpMs(tokens, this.#model.intermediate) : 0;
    const sparse = expertLayers > 0 ? this.#expertsMs(tokens) : 0;
    return (
      layers * (attention + around) +
      (layers - expertLayers) * dense +
      expertLayers * sparse +
      this.#gemmMs(Math.max(1, sampled), vocabulary / this.#tensorParallel, hidden, 2, this.#msPerFlop16) +
      pass.decodeRequests * perSequenceMs
    );
  }

  #gemmMs(m: number, n: number, k: number, weightBytes: number, msPerFlop: number): number {
    return Math.max(2 * m * n * k * msPerFlop, (n * k * weightBytes + 2 * (m * n + m * k)) * this.#msPerByte);
  }

  #weightGemmMs(m: number, n: number, k: number): number {
    return this.#gemmMs(m, n, k, this.#model.weights.bytes, this.#msPerFlop);
  }

  /** Into queries, keys and values, and out again. */
  #projectionsMs(tokens: number): number {
    const { hidden, headSize, latent } = this.#model;
    const keysAndValues = latent === undefined ? 2 * this.#kvHeads * headSize : latent.rank + latent.ropeSize;
    const queries = this.#heads * headSize;
    return this.#weightGemmMs(tokens, queries + keysAndValues, hidden) + this.#weightGemmMs(tokens, hidden, queries);
  }

  #prefillAttentionMs(pass: Readonly<PassShape>): number {
    if (pass.prefillTokens === 0) return 0;
    const { headSize, window } = this.#model;
    const all = pass.prefillPastTokens + pass.prefillTokens;
    const width = this.#heads * headSize;
    const causal = 2 * pass.prefillSquares * width;
    const flops = window === undefined ? causal : Math.min(causal, 4 * pass.prefillTokens * window * width);
    // Reading and writing rotary positions and KV around it costs a tenth more.
    const bytes = 4 * pass.prefillTokens * width + this.#kvBytes(all);
    return 1.1 * Math.max(flops * this.#msPerFlop16, bytes * this.#msPerByte);
  }

  #decodeAttentionMs(pass: Readonly<PassShape>): number {
    if (pass.decodeRequests === 0) return 0;
    const { headSize, window } = this.#model;
    const most = window === undefined ? Number.POSITIVE_INFINITY : window * pass.decodeRequests;
    const context = Math.min(pass.decodeContextTokens, most);
    const width = this.#heads * headSize;
    const perRequest = pass.decodeTokens / pass.decodeRequests;
    const bytes = 4 * width * pass.decodeTokens + this.#kvBytes(context);
    return Math.max(4 * width * context * perRequest * this.#msPerFlop16, bytes * this.#msPerByte);
  }

  /** Bytes of the KV of so many tokens in one layer. */
  #kvBytes(tokens: number): number {
    const { headSize, latent, kvBytes } = this.#model;
    return tokens * kvBytes * (latent === undefined ? 2 * this.#kvHeads * headSize : latent.rank + latent.ropeSize);
  }

  #mlpMs(tokens: number, intermediate: number): number {
    const { hidden, gated } = this.#model;
    const width = intermediate / this.#tensorParallel;
    return this.#weightGemmMs(tokens, (gated ? 2 : 1) * width, hidden) + this.#weightGemmMs(tokens, hidden, width);
  }

  /** Only the experts that some token goes to are read. */
  #expertsMs(tokens: number): number {
    const { hidden, gated, weights, experts } = this.#model;
    if (experts === undefined) return 0;
    const routed = (tokens * experts.perToken) / this.#expertParallel;
    const matrices = gated ? 3 : 2;
    const width = experts.intermediate / this.#tensorParallel;
    const read = Math.min(experts.count / this.#expertParallel, routed);
    const flops = 2 * matrices * routed * hidden * width;
    const bytes = weights.bytes * hidden * width * matrices * read + 2 * routed * (2 * hidden + matrices * width);
    const shared = experts.sharedIntermediate > 0 ? this.#mlpMs(tokens, experts.sharedIntermediate) : 0;
    return Math.max(flops * this.#msPerFlop, bytes * this.#msPerByte) + shared;
  }

  /** Two norms with their additions, and the activation: reads and writes of 16 bit. */
  #elementwiseMs(tokens: number): number {
    const { hidden, intermediate } = this.#model;
    return 2 * tokens * (2 * 3 * hidden + 3 * (intermediate / this.#tensorParallel)) * this.#msPerByte;
  }

  /** Two ring all-reduces of the hidden states. */
  #allReduceMs(tokens: number): number {
    const hops = 2 * (this.#tensorParallel - 1);
    const bytesPerHop = (2 * tokens * this.#model.hidden) / this.#tensorParallel;
    return 2 * hops * (bytesPerHop * this.#msPerLinkByte + this.#calibration.perHopMs);
  }
}

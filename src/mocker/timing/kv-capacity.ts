import type { Gpu } from "./gpus.ts";
import type { ModelShape } from "./model-shape.ts";

export interface KvCapacityOptions {
  readonly model: ModelShape;
  readonly gpu: Gpu;
  readonly tensorParallel?: number;
  readonly expertParallel?: number;
  /** Part of the memory that the engine takes. vLLM's default is 0.9, SGLang's 0.88. */
  readonly memoryFraction?: number;
  /** Tokens of the largest pass: its activations need room. Default 8192. */
  readonly maxBatchedTokens?: number;
}

/** Whatever else is on the GPU: runtime, graphs, workspaces. */
const otherBytes = 3.5 * 2 ** 30;
/** Part of the engine's share that is never used. */
const tolerance = 0.02;

/** Bytes of KV of one token on each GPU. Latent KV is not divided among tensor-parallel GPUs. */
export function kvBytesPerToken(model: ModelShape, tensorParallel = 1): number {
  const perLayer =
    model.latent === undefined
      ? 2 * Math.ceil(model.kvHeads / tensorParallel) * model.headSize
      : model.latent.rank + model.latent.ropeSize;
  return perLayer * model.layers * model.kvBytes;
}

/** Bytes of the weights on each GPU. Embeddings stay in 16 bit. */
export function weightBytesPerGpu(model: ModelShape, tensorParallel = 1, expertParallel = 1): number {
  const { layers, hidden, heads, kvHeads, headSize, vocabulary, gated, intermediate, experts, latent, weights } = model;
  const matrices = gated ? 3 : 2;
  const keysAndValues = latent === undefined ? 2 * kvHeads * headSize : latent.rank + latent.ropeSize;
  const attention = layers * hidden * (2 * heads * headSize + keysAndValues);
  const expertLayers = experts === undefined ? 0 : layers - experts.denseLayers;
  const dense = (layers - expertLayers) * matrices * hidden * intermediate;
  const shared = expertLayers * matrices * hidden * (experts?.sharedIntermediate ?? 0);
  const routed = expertLayers * matrices * hidden * (experts?.intermediate ?? 0) * (experts?.count ?? 0);
  const divided = (attention + dense + shared + routed / expertParallel) * weights.bytes;
  return (2 * 2 * vocabulary * hidden + divided) / tensorParallel;
}

/** Tokens whose KV fits beside everything else; 0 when not even the weights fit. Formula of the reference's estimate. */
export function kvCapacityTokens(options: KvCapacityOptions): number {
  const { model, gpu, tensorParallel = 1, expertParallel = 1, memoryFraction = 0.9, maxBatchedTokens = 8192 } = options;
  const coefficients = model.experts === undefined ? [11, 6.5, 5, 5] : [22, 13, 10, 10];
  const coefficient = coefficients[Math.min(3, Math.floor(Math.log2(tensorParallel)))] ?? 5;
  const activations = 2 * maxBatchedTokens * model.heads * model.headSize * coefficient;
  const communication = (tensorParallel === 1 ? 0 : tensorParallel === 2 ? 342 : 392) * 2 ** 20;
  const taken = weightBytesPerGpu(model, tensorParallel, expertParallel) + activations + communication + otherBytes;
  const left = gpu.memoryBytes * memoryFraction * (1 - tolerance) - taken;
  return Math.max(0, Math.floor(left / kvBytesPerToken(model, tensorParallel)));
}

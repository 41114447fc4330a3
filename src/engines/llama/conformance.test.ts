import { engineContract } from "../conformance/engine.contract.ts";
import { createLlamaEngine } from "./index.ts";
import { builtinModel } from "./testing.contract.ts";

engineContract(
  "llama",
  () =>
    createLlamaEngine({ modelPath: builtinModel, name: "builtin", flashAttention: false }, AbortSignal.timeout(30_000)),
  { prompt: (length, variant = 0) => Uint32Array.from({ length }, (_, i) => 263 + ((i * 31 + variant * 97) % 249)) },
);

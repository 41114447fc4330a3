import type { EngineContractOptions } from "../conformance/engine.contract.ts";

/** A byte prompt of `length`; no byte comes twice within 200 places. */
export function echoPrompt(length: number, variant = 0): Uint32Array {
  return Uint32Array.from({ length }, (_, i) => (i + variant * 11) % 200);
}

/** How the engine contract is run on the echo engine, here and behind a worker host. */
export const echoContract: EngineContractOptions = {
  prompt: echoPrompt,
  refused: [
    { what: "JSON mode", change: { grammar: { kind: "json_object" } }, param: "response_format" },
    { what: "JSON schema", change: { grammar: { kind: "json_schema", schema: "{}" } }, param: "response_format" },
    { what: "logit bias", change: { sampling: { logitBias: [[1, 5]] } }, param: "logit_bias" },
  ],
};

/** The work of one pass, summed over its requests. */
export interface PassShape {
  /** Requests that prefill in this pass, and the tokens they compute. */
  prefillRequests: number;
  prefillTokens: number;
  /** Sum of the tokens before the computed ones (cached or of earlier chunks). */
  prefillPastTokens: number;
  /** Sum of end^2 - start^2 of the computed ranges: twice the token pairs that causal attention looks at. */
  prefillSquares: number;
  /** Of them, those that decode in the same pass, after their last prompt token: in vLLM's way, outside prefill workers. */
  prefillsCompleted: number;
  /** Requests that decode; the sum of their contexts; all their new tokens (more than requests when speculating). */
  decodeRequests: number;
  decodeContextTokens: number;
  decodeTokens: number;
  /** Part of the pool in use, 0 to 1. */
  poolUsage: number;
}

/** How long a pass takes. Pure: the same shape gives the same time. */
export interface TimingModel {
  /** Milliseconds, positive and finite for a pass that has work. */
  passMs(pass: Readonly<PassShape>): number;
}

export function emptyPass(): PassShape {
  return {
    prefillRequests: 0,
    prefillTokens: 0,
    prefillPastTokens: 0,
    prefillSquares: 0,
    prefillsCompleted: 0,
    decodeRequests: 0,
    decodeContextTokens: 0,
    decodeTokens: 0,
    poolUsage: 0,
  };
}

import type { PassShape, TimingModel } from "./timing.ts";

/**
 * The default of the reference's simulated engine, published with it: prefill grows with the new tokens, decode with the
 * part of the pool in use. Blind to the size of the decode batch.
 */
export const polynomialTiming: TimingModel = {
  passMs(pass: Readonly<PassShape>): number {
    return prefillMs(pass.prefillTokens) + (givesTokens(pass) ? decodeMs(pass.poolUsage) : 0);
  },
};

/** A pass that completes a prompt or decodes pays for a decode step. */
export function givesTokens(pass: Readonly<PassShape>): boolean {
  return pass.decodeRequests > 0 || pass.prefillsCompleted > 0;
}

function prefillMs(tokens: number): number {
  return tokens === 0 ? 0 : 4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142;
}

function decodeMs(poolUsage: number): number {
  const usage = Math.min(1, poolUsage);
  return Math.max(1, -25.74 * usage * usage + 54.01 * usage + 5.74);
}

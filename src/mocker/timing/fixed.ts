import { givesTokens } from "./polynomial.ts";
import type { TimingModel } from "./timing.ts";

/** Constants: of a pass with prefill, plus of a pass that gives tokens. At least one must be positive for each pass. */
export function fixedTiming(prefillMs: number, decodeMs: number): TimingModel {
  return { passMs: (pass) => (pass.prefillTokens > 0 ? prefillMs : 0) + (givesTokens(pass) ? decodeMs : 0) };
}

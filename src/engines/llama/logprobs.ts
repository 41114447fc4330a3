import type { TokenLogprob } from "../../protocol/index.ts";

/** Stands for minus infinity, which JSON cannot carry. */
const smallestLogprob = -9999;

/**
 * Logarithms of the chosen token and of the `alternatives` most likely ones. `probabilities` is sorted, most likely
 * first, over the whole vocabulary.
 */
export function tokenLogprob(
  token: number,
  probabilities: ReadonlyMap<number, number>,
  alternatives: number,
): TokenLogprob {
  const top: { token: number; logprob: number }[] = [];
  for (const [candidate, probability] of probabilities) {
    if (top.length === alternatives) break;
    top.push({ token: candidate, logprob: logarithm(probability) });
  }
  return { logprob: logarithm(probabilities.get(token) ?? 0), top };
}

function logarithm(probability: number): number {
  return probability > 0 ? Math.max(smallestLogprob, Math.log(Math.min(1, probability))) : smallestLogprob;
}

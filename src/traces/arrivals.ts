import type { Random } from "../protocol/random.ts";

/** How requests come in. Rates are requests per second. */
export type ArrivalPattern =
  | { readonly kind: "constant"; readonly perSecond: number }
  | { readonly kind: "poisson"; readonly perSecond: number }
  | {
      readonly kind: "sine";
      readonly minPerSecond: number;
      readonly maxPerSecond: number;
      readonly periodSeconds: number;
    }
  | {
      readonly kind: "bursts";
      readonly perSecond: number;
      readonly burstPerSecond: number;
      readonly everySeconds: number;
      readonly burstSeconds: number;
    };

/**
 * Endless, non-decreasing arrival times in ms. `constant` is evenly spaced from 0; the others are Poisson processes, by
 * thinning where the rate changes. Needs a positive peak rate.
 */
export function* arrivalTimes(pattern: ArrivalPattern, random: Random): Generator<number, never> {
  if (pattern.kind === "constant") {
    for (let index = 0; ; index++) yield (index * 1000) / pattern.perSecond;
  }
  const peak = peakRate(pattern);
  for (let seconds = 0; ; ) {
    seconds += -Math.log(1 - random.next()) / peak;
    if (random.next() * peak < rateAt(pattern, seconds)) yield seconds * 1000;
  }
}

/** The expected rate at a time of the workload, in requests per second. */
export function rateAt(pattern: ArrivalPattern, seconds: number): number {
  switch (pattern.kind) {
    case "constant":
    case "poisson":
      return pattern.perSecond;
    case "sine": {
      const middle = (pattern.maxPerSecond + pattern.minPerSecond) / 2;
      const swing = (pattern.maxPerSecond - pattern.minPerSecond) / 2;
      return middle + swing * Math.sin((2 * Math.PI * seconds) / pattern.periodSeconds);
    }
    case "bursts":
      return seconds % pattern.everySeconds < pattern.burstSeconds ? pattern.burstPerSecond : pattern.perSecond;
  }
}

function peakRate(pattern: ArrivalPattern): number {
  if (pattern.kind === "sine") return Math.max(pattern.minPerSecond, pattern.maxPerSecond);
  return pattern.kind === "bursts" ? Math.max(pattern.perSecond, pattern.burstPerSecond) : pattern.perSecond;
}

/** A source of random numbers that a caller can seed. */
export interface Random {
  /** A float in [0, 1). */
  next(): number;
  /** An integer in [0, bound). `bound` must be at least 1. */
  below(bound: number): number;
}

/** Mulberry32: 32 bits of state, fast, good enough for routing and tests; never for secrets. */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  return { next, below: (bound) => Math.floor(next() * bound) };
}

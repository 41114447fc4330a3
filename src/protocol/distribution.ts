/** What reports say about many values; the unit is that of the values. */
export interface Distribution {
  readonly mean: number;
  readonly min: number;
  readonly p50: number;
  readonly p75: number;
  readonly p90: number;
  readonly p95: number;
  readonly p99: number;
  readonly max: number;
  /** Standard deviation of these values (not an estimate for others). */
  readonly std: number;
}

/** Undefined without values: unknown is not zero. */
export function distributionOf(values: Iterable<number>): Distribution | undefined {
  return distributionOfSorted(Float64Array.from(values).sort());
}

/** Of ascending values. */
export function distributionOfSorted(sorted: Float64Array): Distribution | undefined {
  if (sorted.length === 0) return undefined;
  let sum = 0;
  for (const value of sorted) sum += value;
  const mean = sum / sorted.length;
  let squares = 0;
  for (const value of sorted) squares += (value - mean) ** 2;
  return {
    mean,
    min: sorted[0]!,
    p50: quantile(sorted, 0.5),
    p75: quantile(sorted, 0.75),
    p90: quantile(sorted, 0.9),
    p95: quantile(sorted, 0.95),
    p99: quantile(sorted, 0.99),
    max: sorted[sorted.length - 1]!,
    std: Math.sqrt(squares / sorted.length),
  };
}

/** Of ascending values, at least one; linear between the two nearest ranks (numpy's default). */
export function quantile(sorted: Float64Array, share: number): number {
  const rank = share * (sorted.length - 1);
  const below = Math.floor(rank);
  const above = Math.min(below + 1, sorted.length - 1);
  const [low, high] = [sorted[below]!, sorted[above]!];
  return Math.min(high, low + (high - low) * (rank - below)); // rounding must not leave the values
}

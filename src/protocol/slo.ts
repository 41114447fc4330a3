/** Objectives of a request, all in ms. */
export interface Slo {
  readonly ttftMs?: number;
  /** Mean time per output token after the first. */
  readonly tpotMs?: number;
  readonly e2eMs?: number;
}

/** How an answered request went, in ms. */
export interface RequestTimes {
  /** Undefined when no token came. */
  readonly ttftMs?: number | undefined;
  /** Undefined for an answer of one token, which meets any objective for it. */
  readonly tpotMs?: number | undefined;
  readonly e2eMs: number;
}

export function hasObjectives(slo: Slo): boolean {
  return Object.values(slo).some((objective) => objective !== undefined);
}

/** Did it meet every objective? */
export function meetsSlo({ ttftMs, tpotMs, e2eMs }: RequestTimes, slo: Slo): boolean {
  return (
    (slo.ttftMs === undefined || (ttftMs ?? Number.POSITIVE_INFINITY) <= slo.ttftMs) &&
    (slo.tpotMs === undefined || (tpotMs ?? 0) <= slo.tpotMs) &&
    (slo.e2eMs === undefined || e2eMs <= slo.e2eMs)
  );
}

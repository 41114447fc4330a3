/** Maps values to places on an axis, and says where its marks are. */
export interface Scale {
  /** 0 at the low end, 1 at the high end; values beyond are put at the ends. */
  place(value: number): number;
  readonly ticks: readonly number[];
}

const WANTED_TICKS = 6;

/** From `low` to at least `high`, so that the ends are round; or with `exact` ends just there, whatever the marks. */
export function linearScale(low: number, high: number, ends: "round" | "exact" = "round"): Scale {
  const size = Math.max(Math.abs(low), Math.abs(high));
  // Values that are all but equal get an axis of their own size: steps far below them would vanish in rounding.
  const step = roundStep(high - low > size * 1e-6 ? (high - low) / WANTED_TICKS : size);
  const first = Math.floor(low / step) * step;
  const count = Math.max(1, Math.ceil((high - first) / step - 1e-9));
  const ticks = Array.from({ length: count + 1 }, (_, index) => withoutNoise(first + index * step));
  const [from, to] = ends === "exact" && high - low > size * 1e-6 ? [low, high] : [first, first + count * step];
  return {
    place: (value) => within((value - from) / (to - from)),
    ticks: ticks.filter((tick) => tick >= from - step * 1e-9 && tick <= to + step * 1e-9),
  };
}

/** Of positive values; what is not goes to the low end. Marks at 1, 10, 100, and for short spans at 2 and 5 as well. */
export function logScale(low: number, high: number): Scale {
  const from = Math.floor(Math.log10(low));
  const to = Math.max(from + 1, Math.ceil(Math.log10(high) - 1e-9));
  const heads = to - from <= 3 ? [1, 2, 5] : [1];
  const ticks: number[] = [];
  for (let decade = from; decade < to; decade++)
    for (const head of heads) ticks.push(withoutNoise(head * 10 ** decade));
  return {
    place: (value) => (value > 0 ? within((Math.log10(value) - from) / (to - from)) : 0),
    ticks: [...ticks, withoutNoise(10 ** to)],
  };
}

/** The next of 1, 2, 5, 10, ... */
function roundStep(raw: number): number {
  if (!(raw > 0)) return 1;
  const decade = 10 ** Math.floor(Math.log10(raw));
  const head = [1, 2, 5].find((it) => it * decade >= raw * (1 - 1e-9)) ?? 10;
  return head * decade;
}

function within(share: number): number {
  return Math.min(1, Math.max(0, share));
}

function withoutNoise(value: number): number {
  return Number(value.toPrecision(12));
}

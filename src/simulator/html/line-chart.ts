import { escapeHtml } from "./escape.ts";
import { linearScale, logScale, type Scale } from "./scale.ts";

export interface Series {
  /** Empty: not in the legend. */
  readonly name: string;
  /** x and y; a y that is no number is a hole in the line. */
  readonly points: readonly (readonly [x: number, y: number])[];
  /** Which of the page's colours. */
  readonly color: number;
  readonly style?: "solid" | "dashed" | "thin";
}

export interface LineChart {
  readonly title: string;
  readonly xLabel: string;
  readonly yLabel: string;
  readonly series: readonly Series[];
  /** Default linear. */
  readonly xScale?: "linear" | "log";
  /** The high end of y; by default what the values need. Its low end is 0. */
  readonly yMax?: number;
  /** A level to compare with. */
  readonly mark?: { readonly y: number; readonly name: string } | undefined;
  /** Shown without values. */
  readonly emptyText?: string;
}

export const COLORS = 8;
const WIDTH = 560;
const HEIGHT = 280;
const plot = { left: 58, right: WIDTH - 14, top: 12, bottom: HEIGHT - 42 };

/** A figure with a legend and an SVG; classes as in page-style.ts. */
export function lineChart(chart: LineChart): string {
  const { title, series, mark } = chart;
  const known = series.map((it) => ({
    ...it,
    points: it.points.map(([x, y]) => [drawable(x), drawable(y)] as const).filter(([x]) => Number.isFinite(x)),
  }));
  const named = known.filter(({ name, style, points }) => style !== "thin" && name !== "" && points.some(hasValue));
  const legend = named.map(({ name, color, style }) => {
    const line = `<svg class="key" viewBox="0 0 20 8" aria-hidden="true"><path class="line ${classes(color, style)}" d="M0 4H20"/></svg>`;
    return `<span>${line}${escapeHtml(name)}</span>`;
  });
  if (mark !== undefined) {
    legend.push(
      `<span><svg class="key" viewBox="0 0 20 8" aria-hidden="true"><path class="mark" d="M0 4H20"/></svg>${escapeHtml(mark.name)}</span>`,
    );
  }
  const head = `<figcaption>${escapeHtml(title)}</figcaption><div class="legend">${legend.join("")}</div>`;
  return `<figure>${head}<svg class="chart" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escapeHtml(title)}">${drawing(chart, known)}</svg></figure>`;
}

function drawing({ xLabel, yLabel, xScale, yMax, mark, emptyText = "no data" }: LineChart, series: readonly Series[]) {
  const [xs, ys] = extent(series);
  if (ys.high === Number.NEGATIVE_INFINITY) {
    return `<text class="empty" x="${WIDTH / 2}" y="${HEIGHT / 2}">${escapeHtml(emptyText)}</text>`;
  }
  const x =
    xScale === "log"
      ? logScale(xs.lowPositive, Math.max(xs.high, xs.lowPositive))
      : linearScale(xs.low, xs.high, "exact");
  const y = linearScale(0, yMax ?? Math.max(ys.high, mark?.y ?? 0));
  const lines = series.map(({ name, points, color, style }) => {
    const path = pathOf(points, x, y);
    return path === ""
      ? ""
      : `<path class="line ${classes(color, style)}" d="${path}"><title>${escapeHtml(name)}</title></path>`;
  });
  const level = mark === undefined ? "" : `<path class="mark" d="M${plot.left} ${down(y, mark.y)}H${plot.right}"/>`;
  return [axes(x, y), label(xLabel, yLabel), level, ...lines].join("");
}

function axes(x: Scale, y: Scale): string {
  const parts: string[] = [];
  for (const tick of y.ticks) {
    const at = down(y, tick);
    parts.push(`<path class="grid" d="M${plot.left} ${at}H${plot.right}"/>`);
    parts.push(`<text class="y" x="${plot.left - 6}" y="${at}">${tickText(tick)}</text>`);
  }
  for (const tick of x.ticks) {
    const at = across(x, tick);
    parts.push(`<path class="tick" d="M${at} ${plot.bottom}v4"/>`);
    parts.push(`<text class="x" x="${at}" y="${plot.bottom + 16}">${tickText(tick)}</text>`);
  }
  return parts.join("");
}

function label(x: string, y: string): string {
  const middle = (plot.top + plot.bottom) / 2;
  return (
    `<text class="x" x="${(plot.left + plot.right) / 2}" y="${HEIGHT - 6}">${escapeHtml(x)}</text>` +
    `<text class="x" transform="translate(12 ${middle}) rotate(-90)">${escapeHtml(y)}</text>`
  );
}

function pathOf(points: Series["points"], x: Scale, y: Scale): string {
  let path = "";
  let pen = false;
  for (const point of points) {
    // A line of no length shows a single value as a dot.
    if (hasValue(point)) path += `${pen ? "L" : "M"}${across(x, point[0])} ${down(y, point[1])}${pen ? "" : "h0"}`;
    pen = hasValue(point);
  }
  return path;
}

function extent(series: readonly Series[]) {
  const xs = { low: Number.POSITIVE_INFINITY, lowPositive: Number.POSITIVE_INFINITY, high: Number.NEGATIVE_INFINITY };
  const ys = { high: Number.NEGATIVE_INFINITY };
  for (const { points } of series) {
    for (const point of points) {
      if (!hasValue(point)) continue;
      const [x, y] = point;
      xs.low = Math.min(xs.low, x);
      xs.high = Math.max(xs.high, x);
      if (x > 0) xs.lowPositive = Math.min(xs.lowPositive, x);
      ys.high = Math.max(ys.high, y);
    }
  }
  if (xs.lowPositive === Number.POSITIVE_INFINITY) xs.lowPositive = 1;
  return [xs, ys] as const;
}

/** What no axis can show is no value. */
function drawable(value: number): number {
  const size = Math.abs(value);
  return size < 1e-30 ? 0 : size > 1e30 ? Number.NaN : value;
}

function hasValue([, y]: readonly [number, number]): boolean {
  return Number.isFinite(y);
}

function across(scale: Scale, value: number): string {
  return (plot.left + scale.place(value) * (plot.right - plot.left)).toFixed(1);
}

function down(scale: Scale, value: number): string {
  return (plot.bottom - scale.place(value) * (plot.bottom - plot.top)).toFixed(1);
}

function classes(color: number, style: Series["style"] = "solid"): string {
  return `c${color % COLORS} ${style}`;
}

function tickText(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${value / 1e9}G`;
  if (size >= 1e6) return `${value / 1e6}M`;
  if (size >= 1e4) return `${value / 1e3}k`;
  return String(value);
}

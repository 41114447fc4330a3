import { LATE_MS } from "../../loadgen/load-report.ts";
import type { Progress } from "../../loadgen/load-run.ts";

const SHOWN_EVERY_MS = 100;
/** The newest first tokens, of which the line shows the median. */
const RECENT = 1_000;
const DEFAULT_COLUMNS = 120;
/** As in the report: more than one late request in a hundred, and the load is not the one asked for. */
const LATE_SHARE = 0.01;

export interface LineTarget {
  write(text: string): unknown;
  readonly columns?: number;
}

/** `bench serve` at work, in one line of a terminal. */
export class ProgressLine {
  readonly #target: LineTarget;
  readonly #now: () => number;
  readonly #beganAtMs: number;
  readonly #ttfts: number[] = [];
  #late = 0;
  #shownAtMs = Number.NEGATIVE_INFINITY;

  /** `now`: ms. */
  constructor(target: LineTarget, now: () => number = () => performance.now()) {
    this.#target = target;
    this.#now = now;
    this.#beganAtMs = now();
  }

  /** Shown at most ten times a second. */
  update(progress: Progress): void {
    const { ended } = progress;
    if (ended?.ttftMs !== undefined) this.#ttfts[progress.done % RECENT] = ended.ttftMs;
    if (ended !== undefined && ended.lateMs > LATE_MS) this.#late++;
    const now = this.#now();
    if (now - this.#shownAtMs < SHOWN_EVERY_MS) return;
    this.#shownAtMs = now;
    // Wrapped, a line could not be overwritten. Some terminals say that they have no columns.
    const columns = this.#target.columns || DEFAULT_COLUMNS;
    const text = this.#text(progress, (now - this.#beganAtMs) / 1000).slice(0, columns - 1);
    this.#target.write(`\r\x1b[K${text}`);
  }

  clear(): void {
    this.#target.write("\r\x1b[K");
  }

  #text({ total, inFlight, done, failed }: Progress, seconds: number): string {
    const parts = [`${done}/${total}`, `${seconds.toFixed(0)} s`, `${(done / Math.max(seconds, 0.001)).toFixed(1)}/s`];
    parts.push(`${inFlight} in flight`);
    const ttft = medianOf(this.#ttfts);
    if (ttft !== undefined) parts.push(`TTFT p50 ${ttft.toFixed(0)} ms`);
    if (failed > 0) parts.push(`${failed} FAILED`);
    if (this.#late > done * LATE_SHARE) parts.push(`${this.#late} SENT LATE`);
    return parts.join("  ");
  }
}

/** Holes, of requests without a first token, do not count. */
function medianOf(values: readonly number[]): number | undefined {
  const sorted = values.filter(() => true).sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)];
}

/** What comes first of what happens at one moment. */
export const phases = { passEnd: 0, transferEnd: 1, arrival: 2, passBegin: 3 } as const;
export type Phase = (typeof phases)[keyof typeof phases];

const absent = -1;

/**
 * When each of a fixed number of sources is due next. An indexed binary heap, ordered by time, then phase, then source:
 * a total order, so that a run depends on nothing else. Each source is in it at most once; typed arrays only.
 */
export class EventQueue {
  readonly #times: Float64Array;
  readonly #phases: Uint8Array;
  /** Sources, as a heap. */
  readonly #heap: Int32Array;
  /** Where in the heap each source is. */
  readonly #places: Int32Array;
  #length = 0;

  constructor(sources: number) {
    this.#times = new Float64Array(sources);
    this.#phases = new Uint8Array(sources);
    this.#heap = new Int32Array(sources);
    this.#places = new Int32Array(sources).fill(absent);
  }

  /** The source that is due first; undefined when none is. */
  get first(): number | undefined {
    return this.#length === 0 ? undefined : this.#heap[0];
  }

  timeOf(source: number): number {
    return this.#places[source] === absent ? Number.POSITIVE_INFINITY : this.#times[source]!;
  }

  /** Says when the source is due, whatever was said before; Infinity takes it out. */
  set(source: number, timeMs: number, phase: Phase): void {
    if (timeMs === Number.POSITIVE_INFINITY) {
      this.remove(source);
      return;
    }
    this.#times[source] = timeMs;
    this.#phases[source] = phase;
    let place = this.#places[source]!;
    if (place === absent) place = this.#length++;
    this.#settle(source, place);
  }

  remove(source: number): void {
    const place = this.#places[source]!;
    if (place === absent) return;
    this.#places[source] = absent;
    this.#length -= 1;
    if (place < this.#length) this.#settle(this.#heap[this.#length]!, place);
  }

  /** Puts a source where it belongs, from a place that is its own or free. */
  #settle(source: number, from: number): void {
    let place = from;
    while (place > 0) {
      const parent = this.#heap[(place - 1) >> 1]!;
      if (!this.#before(source, parent)) break;
      this.#put(parent, place);
      place = (place - 1) >> 1;
    }
    for (let child = 2 * place + 1; child < this.#length; child = 2 * place + 1) {
      if (child + 1 < this.#length && this.#before(this.#heap[child + 1]!, this.#heap[child]!)) child += 1;
      if (!this.#before(this.#heap[child]!, source)) break;
      this.#put(this.#heap[child]!, place);
      place = child;
    }
    this.#put(source, place);
  }

  #put(source: number, place: number): void {
    this.#heap[place] = source;
    this.#places[source] = place;
  }

  #before(one: number, other: number): boolean {
    const difference = this.#times[one]! - this.#times[other]!;
    if (difference !== 0) return difference < 0;
    const phase = this.#phases[one]! - this.#phases[other]!;
    return phase !== 0 ? phase < 0 : one < other;
  }
}

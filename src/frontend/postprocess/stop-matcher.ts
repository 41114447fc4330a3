/**
 * Finds the first of several stop strings in a growing text, one UTF-16 unit at a time, and knows how much of the end
 * may still become one. Knuth-Morris-Pratt per stop string: no re-scan, no slicing.
 *
 * The match is the stop string whose last character comes first; of several that end there, the longest. So the result
 * does not depend on how the text was cut into pieces.
 */
export class StopMatcher {
  readonly #stops: readonly StopPattern[];
  readonly #states: Int32Array;

  constructor(stops: readonly string[]) {
    this.#stops = stops.map((text) => ({ text, fallback: fallbackTable(text) }));
    this.#states = new Int32Array(stops.length);
  }

  /** Length of the longest end of the text so far that begins a stop string. */
  get partial(): number {
    let longest = 0;
    for (const state of this.#states) longest = Math.max(longest, state);
    return longest;
  }

  /** Feeds `text`. On a match: where it ends in `text` (exclusive) and which stop string it is. */
  feed(text: string): { end: number; stop: string } | undefined {
    const stops = this.#stops;
    const states = this.#states;
    for (let at = 0; at < text.length; at++) {
      const unit = text.charCodeAt(at);
      let matched: string | undefined;
      for (let i = 0; i < stops.length; i++) {
        const { text: stop, fallback } = stops[i]!;
        let state = states[i]!;
        while (state > 0 && stop.charCodeAt(state) !== unit) state = fallback[state - 1]!;
        if (stop.charCodeAt(state) === unit) state += 1;
        states[i] = state;
        if (state === stop.length && (matched === undefined || stop.length > matched.length)) matched = stop;
      }
      if (matched !== undefined) return { end: at + 1, stop: matched };
    }
    return undefined;
  }

  /** Forgets the text so far. */
  reset(): void {
    this.#states.fill(0);
  }
}

interface StopPattern {
  readonly text: string;
  /** fallback[i] = length of the longest proper prefix of text[0..i] that is also its end. */
  readonly fallback: Int32Array;
}

function fallbackTable(pattern: string): Int32Array {
  const table = new Int32Array(pattern.length);
  let length = 0;
  for (let i = 1; i < pattern.length; i++) {
    while (length > 0 && pattern[i] !== pattern[length]) length = table[length - 1]!;
    if (pattern[i] === pattern[length]) length += 1;
    table[i] = length;
  }
  return table;
}

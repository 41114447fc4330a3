import { type Item, parseGbnf, type Rules } from "./gbnf.ts";
import { rehearse } from "./gbnf-rehearsal.ts";

const limits = {
  bytes: 256 * 1024,
  /** Places where a text may go on, from one point of the grammar. */
  openings: 2000,
  /** Things in a row that may all be left out. */
  skips: 48,
};

/** What the beginning of a rule or a sequence can be. */
interface Opening {
  /** Paths to a first character. llama.cpp follows all of them at every step. */
  readonly paths: number;
  /** Ways to match nothing. */
  readonly empty: number;
  /** Things in a row that may be left out at the beginning. */
  readonly skips: number;
}

/**
 * Refuses GBNF that could take the process down: llama.cpp parses and matches inside this process, recurses over
 * nesting, copies repeated elements, and follows every path of an ambiguous grammar for every token of the vocabulary.
 * Syntax beyond what this check needs is llama.cpp's to judge. Throws an Error whose message says what is wrong.
 *
 * Ambiguity that grows with the text is looked for by a rehearsal; what that misses, by the time that a step takes.
 */
export function checkGbnf(grammar: string): void {
  if (Buffer.byteLength(grammar) > limits.bytes) throw new Error(`it is longer than ${limits.bytes} bytes`);
  if (grammar.includes("\0")) throw new Error("it contains a NUL character");
  const rules = parseGbnf(grammar);
  if (!rules.has("root")) throw new Error('it has no rule named "root"');
  try {
    checkOpenings(rules);
    rehearse(rules);
  } catch (error) {
    if (error instanceof RangeError) throw new Error("its rules lead into each other too deeply");
    throw error;
  }
}

function checkOpenings(rules: Rules): void {
  const known = new Map<string, Opening | "open">();
  const openingOf = (name: string): Opening => {
    const found = known.get(name);
    if (found === "open") throw new Error(`the rule "${name}" can begin with itself (left recursion)`);
    if (found !== undefined) return found;
    const alternatives = rules.get(name);
    if (alternatives === undefined) throw new Error(`the rule "${name}" is not defined`);
    known.set(name, "open");
    const total = { paths: 0, empty: 0, skips: 0 };
    for (const sequence of alternatives) {
      const opening = openingFrom(sequence, 0);
      total.paths += opening.paths;
      total.empty += opening.empty;
      total.skips = Math.max(total.skips, opening.skips);
    }
    known.set(name, total);
    return total;
  };
  const itemOpening = ({ what, min, max }: Item): Opening => {
    if (max === 0 || ("text" in what && what.text.length === 0)) return { paths: 0, empty: 1, skips: 0 };
    const inner = "text" in what ? { paths: 1, empty: 0, skips: 0 } : openingOf(what.rule);
    if (inner.empty > 0 && max > 1) throw new Error("something that may be empty is repeated");
    if (min > 0) return inner;
    return { paths: inner.paths, empty: inner.empty + 1, skips: Math.max(1, inner.skips) };
  };
  /** From `start` on, up to the first item that cannot be left out; `end` is where that is. */
  const openingFrom = (sequence: readonly Item[], start: number): Opening & { readonly end: number } => {
    const total = { paths: 0, empty: 1, skips: 0, end: start };
    for (; total.end < sequence.length; total.end++) {
      const opening = itemOpening(sequence[total.end]!);
      total.paths += total.empty * opening.paths;
      total.skips += opening.skips;
      total.empty *= opening.empty;
      if (total.paths > limits.openings || total.empty > limits.openings || total.skips > limits.skips) {
        throw new Error("it is too ambiguous: too many things may be left out or come next at one point");
      }
      if (total.empty === 0) break;
    }
    return total;
  };
  for (const [name, alternatives] of rules) {
    if (openingOf(name).paths > limits.openings) throw new Error(`the rule "${name}" has too many beginnings`);
    // Also in the middle: from every point on. A point inside of a run has fewer ways to go on than its beginning.
    for (const sequence of alternatives) {
      for (let start = 0; start < sequence.length; ) start = openingFrom(sequence, start).end + 1;
    }
  }
}

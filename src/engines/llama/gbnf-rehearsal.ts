import type { CharSet, Item, Rules } from "./gbnf.ts";

/** Characters that the rehearsal goes on for, after each the one that leaves most possibilities open. */
const steps = 40;
/** Different characters that are tried at each step, from `root` and from other rules. */
const tries = 24;
const triesElsewhere = 8;
/** Possibilities at one point. llama.cpp tests each against every token. */
const maxStates = 1000;
/** So many may also become more and more. */
const harmless = 16;
/** Work of the whole rehearsal. */
const maxWork = 300_000;
/** More copies make no difference within the steps. */
const maxCopies = steps + 1;
/** Copies of what must be there: fewer than in the grammar, so that the rehearsal gets to what follows. */
const maxForcedCopies = 4;

const ambiguous = "it is too ambiguous: the possibilities grow with the length of the text";

type Node = { readonly set: CharSet } | { readonly rule: string };
type Sequence = readonly Node[];

/** Where a match may be: a place in a sequence, and the place to return to. Equal states are one object. */
class State {
  readonly sequence: Sequence;
  readonly at: number;
  readonly back: State | undefined;
  private following: State | undefined;
  private inner: Map<Sequence, State> | undefined;

  constructor(sequence: Sequence, at: number, back: State | undefined) {
    this.sequence = sequence;
    this.at = at;
    this.back = back;
  }

  next(): State {
    this.following ??= new State(this.sequence, this.at + 1, this.back);
    return this.following;
  }

  /** The beginning of a sequence after which it goes on here. */
  enter(sequence: Sequence): State {
    this.inner ??= new Map();
    let state = this.inner.get(sequence);
    if (state === undefined) {
      state = new State(sequence, 0, this);
      this.inner.set(sequence, state);
    }
    return state;
  }
}

/**
 * Matches as llama.cpp does, against the text that keeps the number of possibilities highest. A grammar such as
 * `root ::= [a-z] root{0,3}` multiplies them with every character, and llama.cpp would follow them all. Throws an Error
 * when they get too many.
 */
export function rehearse(rules: Rules): void {
  new Rehearsal(rules).run();
}

class Rehearsal {
  private readonly rules: Rules;
  /** Filled as they are used. */
  private readonly alternatives = new Map<string, readonly Sequence[]>();
  private readonly owners = new Map<Sequence, string>();
  /** Rules that were gone through with enough steps left. */
  private readonly seen = new Set<string>();
  private readonly end = new State([], 0, undefined);
  private made = 0;
  private work = 0;

  constructor(rules: Rules) {
    this.rules = rules;
  }

  run(): void {
    this.runFrom("root", tries);
    // What comes late in a text is beyond the steps from `root`; but only recursion lets possibilities grow for ever.
    for (const name of recursiveRules(this.rules)) if (!this.seen.has(name)) this.runFrom(name, triesElsewhere);
  }

  private runFrom(name: string, most: number): void {
    this.seen.add(name);
    let current = this.close(this.alternativesOf(name).map((sequence) => this.end.enter(sequence)));
    const sizes: number[] = [];
    for (let step = 0; step < steps && current.length > 0; step++) {
      sizes.push(current.length);
      if (step < steps / 2) for (const { sequence } of current) this.seen.add(this.owners.get(sequence) ?? "");
      let widest: State[] = [];
      for (const code of representatives(current, most)) {
        this.spend(current.length / 8);
        const next = this.close(current.filter((state) => accepts(state, code)).map((state) => state.next()));
        if (next.length > widest.length) widest = next;
      }
      current = widest;
    }
    // Ordinary grammars go up and down, or stay; one that only ever grows has no end to it.
    const half = sizes.slice(steps / 2);
    const [early, late] = [half[0] ?? 0, half.at(-1) ?? 0];
    const onlyGrows = half.every((size, i) => i === 0 || size >= half[i - 1]!);
    if (onlyGrows && late > harmless && late > early * 1.3) throw new Error(ambiguous);
  }

  private spend(work: number): void {
    this.work += work;
    if (this.work > maxWork) throw new Error(ambiguous);
  }

  private alternativesOf(name: string): readonly Sequence[] {
    let found = this.alternatives.get(name);
    if (found === undefined) {
      found = (this.rules.get(name) ?? []).map((sequence) => this.nodesOfAll(sequence));
      this.alternatives.set(name, found);
      for (const sequence of found) this.owners.set(sequence, name);
    }
    return found;
  }

  /** Up to where the rehearsal can get. */
  private nodesOfAll(sequence: readonly Item[]): Sequence {
    const nodes: Node[] = [];
    let characters = 0;
    for (const item of sequence) {
      nodes.push(...this.nodesOf(item));
      if ("text" in item.what) characters += Math.min(item.min, maxForcedCopies) * item.what.text.length;
      if (characters > steps) break;
    }
    return nodes;
  }

  /** Repetitions written out, as llama.cpp does: copies, then optional copies or a loop. */
  private nodesOf({ what, min, max }: Item): Sequence {
    const once: Sequence = "rule" in what ? [what] : what.text.slice(0, maxCopies).map((set) => ({ set }));
    const copies = Array.from({ length: Math.min(min, maxForcedCopies) }, () => once).flat();
    if (once.length === 0 || max === min) return copies;
    let more: string;
    if (max === Number.POSITIVE_INFINITY) {
      more = `*${this.made++}`;
      this.alternatives.set(more, [[...once, { rule: more }], []]);
    } else {
      more = "";
      for (let i = 0; i < Math.min(max - min, maxCopies); i++) {
        const name = `?${this.made++}`;
        this.alternatives.set(name, [[...once, ...(more === "" ? [] : [{ rule: more }])], []]);
        more = name;
      }
    }
    return [...copies, { rule: more }];
  }

  /** All states before a character that can be reached without one. */
  private close(start: readonly State[]): State[] {
    const seen = new Set<State>();
    const found: State[] = [];
    const open = [...start];
    for (let state = open.pop(); state !== undefined; state = open.pop()) {
      if (seen.has(state)) continue;
      seen.add(state);
      this.spend(1);
      if (found.length > maxStates) throw new Error(ambiguous);
      const node = state.sequence[state.at];
      if (node === undefined) {
        if (state.back !== undefined) open.push(state.back);
      } else if ("set" in node) found.push(state);
      else {
        // At the end of a sequence there is nothing to come back to.
        const back = state.at + 1 === state.sequence.length ? state.back : state.next();
        for (const sequence of this.alternativesOf(node.rule)) open.push((back ?? this.end).enter(sequence));
      }
    }
    return found;
  }
}

/** The rules that lead back to themselves, and those between two such rules. */
function recursiveRules(rules: Rules): Set<string> {
  const to = new Map<string, Set<string>>();
  const from = new Map<string, Set<string>>();
  for (const name of rules.keys()) to.set(name, new Set());
  for (const name of rules.keys()) from.set(name, new Set());
  for (const [name, alternatives] of rules) {
    for (const { what } of alternatives.flat()) {
      if (!("rule" in what)) continue;
      to.get(name)?.add(what.rule);
      from.get(what.rule)?.add(name);
    }
  }
  const left = new Set(rules.keys());
  // Whoever leads nowhere, or is led to from nowhere, is on no circle.
  for (const [ahead, behind] of [
    [to, from],
    [from, to],
  ] as const) {
    const open = [...left].filter((name) => ahead.get(name)!.size === 0);
    for (let name = open.pop(); name !== undefined; name = open.pop()) {
      left.delete(name);
      for (const other of behind.get(name)!) {
        const rest = ahead.get(other)!;
        rest.delete(name);
        if (rest.size === 0 && left.has(other)) open.push(other);
      }
    }
  }
  return left;
}

function accepts(state: State, code: number): boolean {
  const node = state.sequence[state.at];
  return node !== undefined && "set" in node && contains(node.set, code);
}

function contains({ negated, ranges }: CharSet, code: number): boolean {
  // The last range that begins at or before the code; they are in order.
  let [from, to] = [0, ranges.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (ranges[middle]![0] <= code) from = middle + 1;
    else to = middle;
  }
  return (from > 0 && code <= ranges[from - 1]![1]) !== negated;
}

/** Some characters that the states accept: beginnings of ranges, and ordinary ones for negated sets. */
function representatives(states: readonly State[], most: number): Set<number> {
  const codes = new Set<number>();
  for (const { sequence, at } of states) {
    const node = sequence[at];
    if (node === undefined || !("set" in node)) continue;
    const { negated, ranges } = node.set;
    if (negated) for (const code of [97, 98, 48, 32, 34]) codes.add(code);
    else for (const [low] of ranges.slice(0, 3)) codes.add(low);
    if (codes.size >= most) break;
  }
  return codes;
}

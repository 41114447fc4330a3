/** What a text may take apart: GBNF as far as the checks of gbnf-limits.ts and gbnf-rehearsal.ts need it. */
export interface CharSet {
  readonly negated: boolean;
  /** In order, and apart from each other. */
  readonly ranges: readonly (readonly [number, number])[];
}

/** One thing in a sequence: characters one after the other (maybe none), or a rule. `max` is Infinity for `*` and `+`. */
export interface Item {
  readonly what: { readonly text: readonly CharSet[] } | { readonly rule: string };
  readonly min: number;
  readonly max: number;
}

/** Alternatives of sequences, by rule. Groups are rules whose names start with a parenthesis. */
export type Rules = ReadonlyMap<string, readonly (readonly Item[])[]>;

const limits = {
  depth: 100,
  rules: 4000,
  repeat: 2000,
  /** Sum of all upper bounds of repetitions: each is a copy in llama.cpp. */
  repeatSum: 20_000,
  /** Things in all sequences, and alternatives. */
  items: 20_000,
  /** Characters and ranges, with the copies that llama.cpp makes of what is repeated. */
  elements: 300_000,
  /** Ranges of one class: llama.cpp compares each with every token. */
  ranges: 2000,
};

const tokenPattern =
  /\s+|#[^\n]*|"(?:[^"\\\n]|\\[^\n])*"|\[(?:[^\]\\\n]|\\[^\n])*\]|!?<[^>\s]*>|\{[^}\n]*\}|::=|[|()*+?.]|[A-Za-z0-9-]+|[\s\S]/g;

/**
 * The rules with groups as rules of their own. Throws an Error for what is too large or makes no sense. Lenient: it
 * accepts some texts that llama.cpp will refuse.
 */
export function parseGbnf(grammar: string): Rules {
  const rules = new Map<string, Item[][]>();
  const open: { name: string; alternatives: Item[][] }[] = [];
  let repeatSum = 0;
  let items = 0;
  let elements = 0;

  const countItem = (): void => {
    if (++items > limits.items) throw new Error(`it has more than ${limits.items} parts`);
  };
  const grow = (more: number): void => {
    elements += more;
    if (elements > limits.elements)
      throw new Error(`it has more than ${limits.elements} characters, repetitions counted`);
  };
  const current = (): Item[] => {
    const sequence = open.at(-1)?.alternatives.at(-1);
    if (sequence === undefined) throw new Error("it does not start with a rule");
    return sequence;
  };
  const push = (what: Item["what"]): void => {
    countItem();
    grow(sizeOf(what));
    current().push({ what, min: 1, max: 1 });
  };
  const repeat = (min: number, max: number): void => {
    const last = current().pop();
    if (last === undefined) throw new Error("a repetition follows nothing");
    for (const bound of [min, max]) {
      if (Number.isFinite(bound) && bound > limits.repeat) throw new Error(`a repetition exceeds ${limits.repeat}`);
    }
    repeatSum += Number.isFinite(max) ? max : min;
    if (repeatSum > limits.repeatSum) throw new Error(`all repetitions together exceed ${limits.repeatSum}`);
    grow(sizeOf(last.what) * (Number.isFinite(max) ? max : min));
    if (last.min === 1 && last.max === 1) current().push({ ...last, min, max });
    else {
      // A repetition of a repetition is a group.
      const name = `(${rules.size}`;
      rules.set(name, [[last]]);
      current().push({ what: { rule: name }, min, max });
    }
  };

  // One by one, not all at first: each bracket that is never closed makes the pattern look through the rest of the text.
  const tokens = tokensOf(grammar);
  for (let token = tokens.next().value, next: string | undefined; token !== undefined; token = next) {
    next = tokens.next().value;
    if (/^[A-Za-z0-9-]/.test(token)) {
      if (next === "::=") {
        if (open.length > 1) throw new Error("a group is never closed");
        open.length = 0;
        open.push({ name: token, alternatives: [[]] });
        rules.set(token, open[0]!.alternatives);
        next = tokens.next().value;
      } else push({ rule: token });
    } else if (token === "(") {
      if (open.length > limits.depth) throw new Error(`groups are nested more than ${limits.depth} deep`);
      current();
      const group = { name: `(${rules.size}`, alternatives: [[]] };
      rules.set(group.name, group.alternatives);
      open.push(group);
    } else if (token === ")") {
      if (open.length < 2) throw new Error("a ) closes nothing");
      const { name } = open.pop()!;
      push({ rule: name });
    } else if (token === "|") {
      current();
      countItem();
      open.at(-1)!.alternatives.push([]);
    } else if (token === "*") repeat(0, Number.POSITIVE_INFINITY);
    else if (token === "+") repeat(1, Number.POSITIVE_INFINITY);
    else if (token === "?") repeat(0, 1);
    else if (/^\{.+\}$/.test(token)) repeat(...bounds(token));
    else if (token === ".") push({ text: [{ negated: true, ranges: [] }] });
    else if (/^".*"$/.test(token)) push({ text: characters(token.slice(1, -1)).map((code) => one(code)) });
    else if (/^\[.+\]$/.test(token)) push({ text: [charClass(token.slice(1, -1))] });
    // llama.cpp crashes at an id outside of the vocabulary.
    else if (/^!?</.test(token)) throw new Error(`tokens such as ${token.slice(0, 40)} are not supported`);
    else throw new Error(`it has an unexpected or never closed ${token}`);
    if (rules.size > limits.rules) throw new Error(`it has more than ${limits.rules} rules and groups`);
  }
  if (open.length > 1) throw new Error("a group is never closed");
  return rules;
}

function sizeOf(what: Item["what"]): number {
  if ("rule" in what) return 1;
  return what.text.reduce((sum, { ranges }) => sum + Math.max(1, ranges.length), 0);
}

function* tokensOf(grammar: string): Generator<string, undefined> {
  for (const [token] of grammar.matchAll(tokenPattern)) if (!/^(\s|#)/.test(token)) yield token;
  return undefined;
}

function bounds(token: string): [number, number] {
  const match = /^\{\s*(\d+)?\s*(,)?\s*(\d+)?\s*\}$/.exec(token);
  if (match === null || (match[1] === undefined && match[3] === undefined))
    throw new Error(`${token} is not a repetition`);
  const min = Number(match[1] ?? 0);
  const max = match[2] === undefined ? min : match[3] === undefined ? Number.POSITIVE_INFINITY : Number(match[3]);
  if (min > max) throw new Error(`${token} is not a repetition`);
  return [min, max];
}

function one(code: number): CharSet {
  return { negated: false, ranges: [[code, code]] };
}

function charClass(text: string): CharSet {
  const negated = text.startsWith("^");
  const codes = [...(negated ? text.slice(1) : text).matchAll(characterPattern)].map(([part]) => part);
  const ranges: [number, number][] = [];
  for (let i = 0; i < codes.length; i++) {
    const first = codeOf(codes[i]!);
    const isRange = codes[i + 1] === "-" && i + 2 < codes.length;
    ranges.push([first, isRange ? codeOf(codes[i + 2]!) : first]);
    if (isRange) i += 2;
  }
  if (ranges.length > limits.ranges) throw new Error(`a character class has more than ${limits.ranges} members`);
  return { negated, ranges: inOrder(ranges) };
}

function inOrder(ranges: readonly (readonly [number, number])[]): [number, number][] {
  const merged: [number, number][] = [];
  for (const [low, high] of ranges.filter(([low, high]) => low <= high).toSorted(([a], [b]) => a - b)) {
    const last = merged.at(-1);
    if (last !== undefined && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else merged.push([low, high]);
  }
  return merged;
}

const characterPattern = /\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\[\s\S]|[\s\S]/gu;

function characters(text: string): number[] {
  // Most texts have nothing to unescape; a long one should not cost a match for each character.
  if (!text.includes("\\")) return Array.from(text, (char) => char.codePointAt(0)!);
  return [...text.matchAll(characterPattern)].map(([part]) => codeOf(part));
}

function codeOf(part: string): number {
  if (/^\\[xuU]./.test(part)) return Number.parseInt(part.slice(2), 16);
  if (part.startsWith("\\")) return { n: 10, r: 13, t: 9 }[part[1]!] ?? part.codePointAt(1)!;
  return part.codePointAt(0)!;
}

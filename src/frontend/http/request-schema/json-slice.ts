/**
 * The source text of the value at `path` (object keys only) in `json`, which must be valid JSON. Where a key stands
 * twice the last one counts, as in JSON.parse. Undefined when there is no such value.
 */
export function jsonSlice(json: string, path: readonly string[]): string | undefined {
  let range: Range | undefined = { start: skipSpace(json, 0), end: json.length };
  for (const key of path) {
    range = member(json, range.start, key);
    if (range === undefined) return undefined;
  }
  return json.slice(range.start, range.end);
}

interface Range {
  readonly start: number;
  readonly end: number;
}

function member(json: string, start: number, key: string): Range | undefined {
  if (json[start] !== "{") return undefined;
  let found: Range | undefined;
  let at = skipSpace(json, start + 1);
  while (json[at] === '"') {
    const keyEnd = stringEnd(json, at);
    const name: unknown = JSON.parse(json.slice(at, keyEnd));
    const valueStart = skipSpace(json, skipSpace(json, keyEnd) + 1);
    const valueEnd = endOfValue(json, valueStart);
    if (name === key) found = { start: valueStart, end: valueEnd };
    at = skipSpace(json, valueEnd);
    if (json[at] === ",") at = skipSpace(json, at + 1);
  }
  return found;
}

function endOfValue(json: string, start: number): number {
  const first = json[start];
  if (first === '"') return stringEnd(json, start);
  if (first !== "{" && first !== "[") {
    let at = start;
    while (at < json.length && !/[\s,\]}]/.test(json[at]!)) at++;
    return at;
  }
  let depth = 0;
  for (let at = start; at < json.length; ) {
    const char = json[at];
    if (char === '"') {
      at = stringEnd(json, at);
      continue;
    }
    if (char === "{" || char === "[") depth++;
    else if ((char === "}" || char === "]") && --depth === 0) return at + 1;
    at++;
  }
  return json.length;
}

/** `start` is the opening quote; returns the index after the closing one. */
function stringEnd(json: string, start: number): number {
  let at = start + 1;
  while (at < json.length && json[at] !== '"') at += json[at] === "\\" ? 2 : 1;
  return at + 1;
}

function skipSpace(json: string, start: number): number {
  let at = start;
  while (at < json.length && (json[at] === " " || json[at] === "\n" || json[at] === "\r" || json[at] === "\t")) at++;
  return at;
}

/** The name in `names` that `given` is most likely a slip of: few edits apart, case and separators aside. */
export function closest(given: string, names: readonly string[]): string | undefined {
  if (given.length > 64) return undefined;
  const plain = (text: string): string => text.toLowerCase().replace(/[-_ ]/g, "");
  let best: string | undefined;
  let bestDistance = Math.max(2, Math.floor(given.length / 4)) + 1;
  for (const name of names) {
    const distance = editDistance(plain(given), plain(name), bestDistance);
    if (distance < bestDistance) {
      best = name;
      bestDistance = distance;
    }
  }
  return best;
}

/** Levenshtein distance; gives up with `limit` as soon as it cannot be less. */
function editDistance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) >= limit) return limit;
  let previous = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitution = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(substitution, previous[j]! + 1, row[j - 1]! + 1));
    }
    previous = row;
  }
  return previous[b.length]!;
}

import type { Random } from "../../protocol/random.ts";
import type { LoadBook } from "../load/load-book.ts";

/** Picks an index of `candidates` (at least one). */
export type Picker = (candidates: readonly string[], book: LoadBook, random: Random) => number;

/** Each worker in turn. The turn survives changes of the list: it is a count, not a position. */
export function roundRobinPicker(): Picker {
  let turn = 0;
  return (candidates) => {
    const index = turn % candidates.length;
    turn = (turn + 1) % Number.MAX_SAFE_INTEGER;
    return index;
  };
}

export function randomPicker(): Picker {
  return (candidates, _book, random) => random.below(candidates.length);
}

/** Two different workers at random; the one with fewer requests, a coin when equal. */
export function powerOfTwoPicker(): Picker {
  return (candidates, book, random) => {
    const first = random.below(candidates.length);
    if (candidates.length === 1) return first;
    const second = (first + 1 + random.below(candidates.length - 1)) % candidates.length;
    const difference = book.requests(candidates[first]!) - book.requests(candidates[second]!);
    return difference <= 0 ? first : second;
  };
}

/** The worker with the fewest requests; among equals one at random, so that nothing herds on the first. */
export function leastLoadedPicker(): Picker {
  return (candidates, book, random) => {
    let best = 0;
    let bestLoad = Number.POSITIVE_INFINITY;
    let equals = 0;
    for (let index = 0; index < candidates.length; index++) {
      const load = book.requests(candidates[index]!);
      if (load > bestLoad) continue;
      if (load < bestLoad) {
        best = index;
        bestLoad = load;
        equals = 1;
      } else if (random.below(++equals) === 0) {
        best = index;
      }
    }
    return best;
  };
}

import type { Random } from "../protocol/random.ts";
import { type ArrivalPattern, arrivalTimes } from "./arrivals.ts";
import type { TraceRequest } from "./trace-request.ts";

/** How long prompts and answers are, in tokens; never below 1. */
export type LengthSpec =
  | { readonly kind: "fixed"; readonly tokens: number }
  | { readonly kind: "uniform"; readonly min: number; readonly max: number }
  /** Long-tailed, as real prompts are. `sigma` is the spread of the logarithm; 1 gives a p99 of about six means. */
  | { readonly kind: "lognormal"; readonly mean: number; readonly sigma: number };

export interface GeneratorSpec {
  readonly requests: number;
  readonly arrivals: ArrivalPattern;
  /** New tokens of each request (of each turn, in sessions), the shared prefix included. */
  readonly input: LengthSpec;
  readonly output: LengthSpec;
  /** Part of the input that it has in common with its group, 0 to 1. Default 0. */
  readonly sharedPrefixRatio?: number;
  /** How many different shared prefixes there are. Default 1. */
  readonly prefixGroups?: number;
  /** Turns of each session; each turn's prompt begins with all that was said before. Default 1: no sessions. */
  readonly turns?: number;
  /** From the end of an answer to the session's next turn, in ms. Default 0. */
  readonly delayMs?: number;
  /** Default 64. */
  readonly blockTokens?: number;
}

/** A workload from a description. The same spec and seed give the same workload. Ordered by arrival of the sessions. */
export function* generateTrace(spec: GeneratorSpec, random: Random): Generator<TraceRequest> {
  const blockTokens = spec.blockTokens ?? 64;
  const turns = spec.turns ?? 1;
  const ids = new ChainedIds(spec.prefixGroups ?? 1);
  const arrivals = arrivalTimes(spec.arrivals, random);
  for (let made = 0, session = 0; made < spec.requests; session++) {
    const arrivalMs = arrivals.next().value;
    const group = random.below(spec.prefixGroups ?? 1);
    let history: number[] = [];
    let context = 0;
    for (let turn = 0; turn < turns && made < spec.requests; turn++, made++) {
      const fresh = drawLength(spec.input, random);
      const shared = turn === 0 ? Math.floor((fresh * (spec.sharedPrefixRatio ?? 0)) / blockTokens) : 0;
      const inputTokens = context + fresh;
      const outputTokens = drawLength(spec.output, random);
      if (turn === 0) history = ids.ofGroup(group, shared);
      // Only a full block keeps its id: what follows in the last, partly filled one changes its content.
      const blockIds = history.slice(0, turn === 0 ? shared : Math.floor(context / blockTokens));
      ids.extend(blockIds, Math.ceil((inputTokens + (turns > 1 ? outputTokens : 0)) / blockTokens));
      const request = { arrivalMs, inputTokens, outputTokens, blockIds, blockTokens };
      if (turns === 1) yield request;
      else if (turn === 0) yield { ...request, session: String(session) };
      else yield { ...request, session: String(session), delayMs: spec.delayMs ?? 0 };
      history = blockIds;
      context = inputTokens + outputTokens;
    }
  }
}

export function drawLength(spec: LengthSpec, random: Random): number {
  switch (spec.kind) {
    case "fixed":
      return spec.tokens;
    case "uniform":
      return spec.min + random.below(spec.max - spec.min + 1);
    case "lognormal": {
      const radius = Math.sqrt(-2 * Math.log(1 - random.next()));
      const normal = radius * Math.cos(2 * Math.PI * random.next()); // Box and Muller
      const location = Math.log(spec.mean) - (spec.sigma * spec.sigma) / 2;
      return Math.max(1, Math.round(Math.exp(location + spec.sigma * normal)));
    }
  }
}

/** Fresh ids, and for each group one growing chain of shared ones. */
class ChainedIds {
  #next = 0;
  readonly #groups: number[][];

  constructor(groups: number) {
    this.#groups = Array.from({ length: groups }, () => []);
  }

  ofGroup(group: number, blocks: number): number[] {
    const chain = this.#groups[group] ?? [];
    this.extend(chain, blocks);
    return chain.slice(0, blocks);
  }

  extend(chain: number[], blocks: number): void {
    while (chain.length < blocks) chain.push(this.#next++);
  }
}

import type { Llama, LlamaContext, LlamaGrammarEvaluationState, LlamaModel, Token, TokenBias } from "node-llama-cpp";
import { StatorError } from "../../protocol/index.ts";
import type { BatchOrder } from "./batch-order.ts";

/** The package, loaded when an engine starts: it is optional. */
export type NativeModule = typeof import("node-llama-cpp");

/** Tried together with everything here. */
export const testedVersion = "3.21.1";

/** A loaded model and the context that all sequences of the engine share. */
export interface Native {
  readonly module: NativeModule;
  readonly llama: Llama;
  readonly model: LlamaModel;
  readonly context: LlamaContext;
  readonly order: BatchOrder;
}

/** Throws `not_ready` with what to do when the package is missing or does not start on this machine. */
export async function importNative(): Promise<NativeModule> {
  try {
    return await import("node-llama-cpp");
  } catch (cause) {
    const missing = (cause as NodeJS.ErrnoException).code === "ERR_MODULE_NOT_FOUND";
    const why = missing
      ? "is not installed"
      : `does not start: ${cause instanceof Error ? cause.message : String(cause)}`;
    throw new StatorError(
      "not_ready",
      `The llama engine needs the package node-llama-cpp, which ${why}. Install it: npm install node-llama-cpp@${testedVersion}`,
      { cause },
    );
  }
}

// Below are the only three places that reach into the package. All fail at the start, not at a request, when it changes.

const changed = `This version of node-llama-cpp works in another way inside. Install the tested one: npm install node-llama-cpp@${testedVersion}`;

/** What `sampleToken` gives instead of a token when there is none; the package turns it into an ordinary error. */
const noToken = -1;

/**
 * Makes a failed sampling (a grammar that leaves no token) an ordinary error of its sequence. As it is, the package
 * would leave the caller waiting for ever and reject a promise that nobody holds, which ends the process.
 *
 * And lets only one sampling run at a time: the package samples all sequences of a batch in parallel threads, while
 * llama.cpp puts its rows of logits into order at the first access, without a lock. Two at once can get a foreign row.
 */
export function guardSampling(context: LlamaContext): void {
  const inner: unknown = Reflect.get(context, "_ctx");
  const sample: unknown = typeof inner === "object" && inner !== null ? Reflect.get(inner, "sampleToken") : undefined;
  if (typeof sample !== "function") throw new StatorError("not_ready", changed);
  let last: Promise<unknown> = Promise.resolve();
  const guarded = (...args: unknown[]): Promise<unknown> => {
    const next = last
      .then(() => Reflect.apply(sample, inner, args) as Promise<unknown>)
      .catch(() => (args.length > 2 ? [noToken] : noToken));
    last = next;
    return next;
  };
  Object.defineProperty(inner, "sampleToken", { value: guarded });
}

/** Logits added per token. The package's own `TokenBias.set` leaves end tokens out; min_tokens needs exactly those. */
export class LogitBias {
  readonly handle: TokenBias;
  private readonly values: Map<number, number>;

  constructor(native: Pick<Native, "module" | "model">) {
    this.handle = native.module.TokenBias.for(native.model);
    const values: unknown = Reflect.get(this.handle, "_biases");
    if (!(values instanceof Map)) {
      throw new StatorError("not_ready", changed);
    }
    this.values = values as Map<number, number>;
  }

  set(token: number, logit: number): void {
    if (logit === 0) this.values.delete(token);
    else this.values.set(token, logit);
  }

  get isEmpty(): boolean {
    return this.values.size === 0;
  }
}

/**
 * Moves a grammar on by a token that another sampler chose. False = the token does not fit, and the state is as it was.
 * An end token that fits leaves it where it is.
 */
export type AcceptInGrammar = (state: LlamaGrammarEvaluationState, token: number) => boolean;

/** The package does this for its own function calling only. */
export function grammarAcceptance({ llama, model }: Pick<Native, "llama" | "model">): AcceptInGrammar {
  const bindings: unknown = Reflect.get(llama, "_bindings");
  const sampler: unknown = isObject(bindings) ? Reflect.get(bindings, "AddonSampler") : undefined;
  const fits: unknown = isObject(sampler) ? Reflect.get(sampler, "canBeNextTokenForGrammarEvaluationState") : undefined;
  const accept: unknown = isObject(sampler) ? Reflect.get(sampler, "acceptGrammarEvaluationStateToken") : undefined;
  if (typeof fits !== "function" || typeof accept !== "function") throw new StatorError("not_ready", changed);
  return (state, token) => {
    const inner: unknown = Reflect.get(state, "_state");
    if (Reflect.apply(fits, sampler, [inner, token]) !== true) return false;
    if (!model.isEogToken(token as Token)) Reflect.apply(accept, sampler, [inner, token]);
    return true;
  };
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}

export function asTokens(ids: readonly number[]): Token[] {
  return ids as Token[];
}

import type { LlamaGrammarEvaluationState } from "node-llama-cpp";
import { StatorError } from "../../protocol/index.ts";
import type { AcceptInGrammar } from "./native.ts";

/**
 * Where one sequence is in its grammar. Ordinarily the sampler moves the state on by the token that it chooses. While
 * tokens of another worker are replayed, its choice may be another one than the recorded one: then the state is made
 * anew from the recorded tokens, and the sampler does without it until the replay is over.
 */
export class GrammarProgress {
  private readonly fresh: () => LlamaGrammarEvaluationState;
  private readonly accept: AcceptInGrammar;
  private state: LlamaGrammarEvaluationState;
  private followsSampler = true;

  constructor(fresh: () => LlamaGrammarEvaluationState, accept: AcceptInGrammar) {
    this.fresh = fresh;
    this.accept = accept;
    this.state = fresh();
  }

  /** For the next sampling. */
  readonly forSampler = (): LlamaGrammarEvaluationState | undefined => (this.followsSampler ? this.state : undefined);

  /** `recorded[at]` stands where the sampler chose `sampled`. Throws `engine_error` when the grammar refuses it. */
  replay(recorded: Uint32Array, at: number, sampled: number): void {
    if (this.followsSampler) {
      if (sampled === recorded[at]) return;
      this.followsSampler = false;
      this.state = this.fresh();
      for (let i = 0; i < at; i++) this.take(recorded[i]!);
    }
    this.take(recorded[at]!);
  }

  /** From here on the sampler's choice counts. */
  replayIsOver(): void {
    this.followsSampler = true;
  }

  private take(token: number): void {
    if (this.accept(this.state, token)) return;
    throw new StatorError(
      "engine_error",
      "A token generated elsewhere does not fit the grammar; nothing can follow it.",
    );
  }
}

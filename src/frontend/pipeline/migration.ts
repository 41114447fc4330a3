import type { ErrorCode } from "../../protocol/errors.ts";
import type { MigrationOptions } from "../options.ts";
import type { MigrationFailure, MigrationStart } from "./migrated.ts";
import type { SequencePlan } from "./sequence-plan.ts";
import { TokenLog } from "./token-log.ts";

/** How often one sequence has moved, whether it may again, and what it takes along. */
export class Migration {
  /** Absent when the tokens will not be needed. */
  readonly log: TokenLog | undefined;
  readonly #never: MigrationFailure | undefined;
  readonly #resumes: boolean;
  readonly #limit: number;
  #count = 0;

  constructor({ model, request, wantedWorkerId }: SequencePlan, { limit, maxTokens }: MigrationOptions) {
    const room = maxTokens - request.tokens.length;
    this.#limit = limit;
    this.#resumes = model.card.capabilities.resume === true;
    this.#never =
      limit === 0 ? "off" : wantedWorkerId !== undefined ? "named_worker" : room < 0 ? "too_long" : undefined;
    this.log = this.#never === undefined && this.#resumes ? new TokenLog(room) : undefined;
  }

  get hasMoved(): boolean {
    return this.#count > 0;
  }

  /** For the next worker; undefined when nothing was generated. */
  get generated(): Uint32Array | undefined {
    const tokens = this.log?.tokens;
    return tokens === undefined || tokens.length === 0 ? undefined : tokens;
  }

  /** What keeps a sequence with so many tokens from going on elsewhere; undefined = nothing. */
  obstacle(completionTokens: number): MigrationFailure | undefined {
    if (this.#never !== undefined) return this.#never;
    if (this.#count >= this.#limit) return "limit";
    if (completionTokens === 0) return undefined;
    if (!this.#resumes) return "no_resume";
    return this.log?.tokens === undefined ? "too_long" : undefined;
  }

  begin(from: string, reason: ErrorCode, generated: number): MigrationStart {
    this.#count++;
    return { type: generated === 0 ? "new_request" : "ongoing", from, reason, generated };
  }
}

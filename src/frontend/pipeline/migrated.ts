import type { ErrorCode } from "../../protocol/errors.ts";

/** `new_request`: no token had come, the request is sent again. `ongoing`: it goes on behind the tokens so far. */
export type MigrationType = "new_request" | "ongoing";

/**
 * Why a sequence whose worker is gone ends with an error. `off`: migration.limit is 0. `named_worker`: the client wants
 * that worker and no other. `limit`, `too_long`: over migration.limit, migration.maxTokens. `no_resume`: the engine
 * cannot go on behind given tokens. `no_worker`: nobody took it in time. `not_resumed`: the next worker failed on it.
 */
export type MigrationFailure =
  | "off"
  | "named_worker"
  | "limit"
  | "too_long"
  | "no_resume"
  | "no_worker"
  | "not_resumed";

/** A sequence leaves a worker. */
export interface MigrationStart {
  readonly type: MigrationType;
  readonly from: string;
  readonly reason: ErrorCode;
  /** Tokens so far. */
  readonly generated: number;
}

/** Another worker has taken it. */
export interface Migrated extends MigrationStart {
  readonly to: string;
}

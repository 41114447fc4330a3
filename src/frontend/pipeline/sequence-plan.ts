import type { GenerateRequest } from "../../protocol/generate.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { SequenceTextOptions } from "../postprocess/sequence-text.ts";

/** One sequence to generate; everything that does not change from worker to worker. */
export interface SequencePlan {
  /** Choice index. */
  readonly index: number;
  readonly model: ServedModel;
  readonly request: Omit<GenerateRequest, "requestId" | "timeoutMs" | "generated">;
  readonly table: TokenTable;
  readonly text: SequenceTextOptions;
  readonly wantedWorkerId: string | undefined;
  readonly requestId: string;
  readonly deadlineAt: number;
  readonly traceparent: string | undefined;
}

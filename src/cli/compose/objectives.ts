import type { Slo } from "../../protocol/slo.ts";

/** The `--slo-*` options. */
export interface ObjectiveOptions {
  readonly sloTtftMs?: number;
  readonly sloTpotMs?: number;
  readonly sloE2eMs?: number;
}

export function objectives({ sloTtftMs, sloTpotMs, sloE2eMs }: ObjectiveOptions): Slo {
  return {
    ...(sloTtftMs === undefined ? {} : { ttftMs: sloTtftMs }),
    ...(sloTpotMs === undefined ? {} : { tpotMs: sloTpotMs }),
    ...(sloE2eMs === undefined ? {} : { e2eMs: sloE2eMs }),
  };
}

/** Why something cannot serve; undefined = it can. */
export type Problem = string | undefined;

export interface ProcessHealth {
  readonly status: "ready" | "not_ready";
  readonly uptimeSeconds: number;
  /** By name: `ready`, or why not. */
  readonly parts: Readonly<Record<string, string>>;
}

/** What this process serves, and whether each part of it can. Ready = all of it. */
export class HealthBoard {
  readonly #startedAtMs = performance.now();
  readonly #parts = new Map<string, Problem>();

  set(part: string, problem: Problem): void {
    this.#parts.set(part, problem);
  }

  remove(part: string): void {
    this.#parts.delete(part);
  }

  /** A process that serves nothing yet is not ready. */
  report(): ProcessHealth {
    const parts = Object.fromEntries([...this.#parts].map(([part, problem]) => [part, problem ?? "ready"]));
    const ready = this.#parts.size > 0 && [...this.#parts.values()].every((problem) => problem === undefined);
    return {
      status: ready ? "ready" : "not_ready",
      uptimeSeconds: Math.round((performance.now() - this.#startedAtMs) / 100) / 10,
      parts,
    };
  }
}

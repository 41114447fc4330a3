import type { FaultKind, FaultPoint } from "./fault-script.ts";

/**
 * The faults that hold for one worker. Faults that overlap do not end each other: it is dead, frozen, cut off, or without
 * events as long as any fault of the kind holds, and the factors of slow-downs multiply.
 */
export class ActiveFaults {
  readonly #counts: Record<FaultKind, number> = { kill: 0, freeze: 0, slowDown: 0, dropEvents: 0, cutLink: 0 };
  readonly #factors: number[] = [];

  /** Whether a fault of this kind holds. */
  has(kind: FaultKind): boolean {
    return this.#counts[kind] > 0;
  }

  /** Passes take so many times as long. */
  get factor(): number {
    return this.#factors.reduce((product, factor) => product * factor, 1);
  }

  /** Takes a point of the script that means this worker. True when that changed what `has` or `factor` says. */
  apply({ kind, begins, factor }: FaultPoint): boolean {
    const had = this.has(kind);
    this.#counts[kind] += begins ? 1 : -1;
    if (kind !== "slowDown") return this.has(kind) !== had;
    if (begins) this.#factors.push(factor);
    else this.#factors.splice(this.#factors.indexOf(factor), 1);
    return true;
  }
}

import { ActiveFaults } from "../mocker/active-faults.ts";
import { checkNames, type FaultPoint, type FaultScript } from "../mocker/fault-script.ts";
import { type EventQueue, phases } from "./event-queue.ts";
import type { FaultyFleet } from "./fleet.ts";

/** Silence after which a live frontend gives a worker up: the request plane's heartbeat. */
const GIVE_UP_MS = 10_000;

/** Lets the faults of a script happen. One source of the event queue. */
export class FaultDriver {
  readonly #points: readonly FaultPoint[];
  readonly #fleet: FaultyFleet;
  readonly #queue: EventQueue;
  readonly #source: number;
  readonly #active: readonly ActiveFaults[];
  readonly #indexOf: ReadonlyMap<string, number>;
  /** Workers that were cut off, and when they are given up: all cuts take as long, so it is in order of time. */
  readonly #cuts: { readonly worker: number; readonly atMs: number }[] = [];
  readonly #cutAtMs: number[];
  #nextPoint = 0;
  #nextCut = 0;

  constructor(script: FaultScript, fleet: FaultyFleet, queue: EventQueue, source: number) {
    const names = fleet.tallies.map(({ id }) => id);
    checkNames(script, names);
    this.#points = script.points;
    this.#fleet = fleet;
    this.#queue = queue;
    this.#source = source;
    this.#active = names.map(() => new ActiveFaults());
    this.#indexOf = new Map(names.map((name, index) => [name, index]));
    this.#cutAtMs = names.map(() => Number.NaN);
    this.#schedule();
  }

  step(nowMs: number): void {
    for (let point = this.#points[this.#nextPoint]; point !== undefined && point.atMs <= nowMs; ) {
      this.#happen(point, nowMs);
      point = this.#points[++this.#nextPoint];
    }
    let gaveUp = false;
    for (let cut = this.#cuts[this.#nextCut]; cut !== undefined && cut.atMs <= nowMs; ) {
      const { worker } = cut;
      // Not a cut that is over, nor one that began after that.
      const isOver = !this.#active[worker]!.has("cutLink") || this.#cutAtMs[worker]! + GIVE_UP_MS !== cut.atMs;
      if (!isOver) this.#fleet.giveUp(worker, nowMs);
      gaveUp ||= !isOver;
      cut = this.#cuts[++this.#nextCut];
    }
    if (gaveUp) this.#fleet.settled(nowMs);
    this.#schedule();
  }

  #happen(point: FaultPoint, nowMs: number): void {
    const workers =
      point.workers === "all" ? this.#active.keys() : point.workers.map((name) => this.#indexOf.get(name)!);
    for (const worker of workers) {
      const active = this.#active[worker]!;
      if (!active.apply(point)) continue;
      if (point.kind === "cutLink" && point.begins) {
        this.#cutAtMs[worker] = nowMs;
        this.#cuts.push({ worker, atMs: nowMs + GIVE_UP_MS });
      }
      this.#fleet.fault(worker, point.kind, active, nowMs);
    }
    this.#fleet.settled(nowMs);
  }

  #schedule(): void {
    const point = this.#points[this.#nextPoint]?.atMs ?? Number.POSITIVE_INFINITY;
    const cut = this.#cuts[this.#nextCut]?.atMs ?? Number.POSITIVE_INFINITY;
    this.#queue.set(this.#source, Math.min(point, cut), phases.transferEnd);
  }
}

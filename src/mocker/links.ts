import { StatorError } from "../protocol/errors.ts";

interface Transfer {
  readonly links: readonly number[];
  leftBytes: number;
  bytesPerMs: number;
  endMs: number;
}

const never = Number.POSITIVE_INFINITY;

/**
 * Links with a bandwidth, and transfers that go over one or more of them at once, such as the network card of the
 * sender and that of the receiver. Transfers share links max-min fairly: on the busiest link each gets an equal part,
 * and what such a transfer cannot use of its other links goes to the others there.
 *
 * Driven like an engine: `nextWorkAtMs` says when the next transfer is over, `step` returns those that are.
 */
export class Links {
  readonly #bytesPerMs: number[];
  readonly #transfers = new Map<number, Transfer>();
  #nowMs = 0;
  #nextMs = never;

  /** Bytes per second of each link; 0 is a link that is cut. */
  constructor(bytesPerSecond: readonly number[]) {
    this.#bytesPerMs = bytesPerSecond.map((rate) => rate / 1000);
  }

  /** When the next transfer ends; Infinity when none does. Read it again after every call. */
  get nextWorkAtMs(): number {
    return this.#nextMs;
  }

  get active(): number {
    return this.#transfers.size;
  }

  /** The speed of a transfer right now. */
  bytesPerSecond(id: number): number {
    return (this.#transfers.get(id)?.bytesPerMs ?? 0) * 1000;
  }

  /** Begins a transfer over all the links named; over none, it ends at once. An id may be used once at a time. */
  start(id: number, bytes: number, links: readonly number[], nowMs: number): void {
    if (this.#transfers.has(id)) throw new StatorError("invalid_value", `Transfer id ${id} is in use`, { param: "id" });
    for (const link of links) this.#check(link);
    this.#advance(nowMs);
    this.#transfers.set(id, { links: [...new Set(links)], leftBytes: bytes, bytesPerMs: 0, endMs: never });
    this.#share();
  }

  /** False when unknown. */
  cancel(id: number, nowMs: number): boolean {
    if (!this.#transfers.has(id)) return false;
    this.#advance(nowMs);
    this.#transfers.delete(id);
    this.#share();
    return true;
  }

  /** Changes a link, for faults: 0 cuts it, and what goes over it stands still. */
  setBandwidth(link: number, bytesPerSecond: number, nowMs: number): void {
    this.#check(link);
    this.#advance(nowMs);
    this.#bytesPerMs[link] = bytesPerSecond / 1000;
    this.#share();
  }

  /** The ids of the transfers that are over, in the order in which they were begun. */
  step(nowMs: number): number[] {
    if (nowMs < this.#nextMs) return [];
    this.#advance(nowMs);
    const over: number[] = [];
    for (const [id, transfer] of this.#transfers) {
      if (transfer.endMs <= nowMs) over.push(id);
    }
    for (const id of over) this.#transfers.delete(id);
    this.#share();
    return over;
  }

  #check(link: number): void {
    if (this.#bytesPerMs[link] === undefined) {
      throw new StatorError("invalid_value", `There is no link ${link}`, { param: "link" });
    }
  }

  #advance(nowMs: number): void {
    const passed = nowMs - this.#nowMs;
    this.#nowMs = nowMs;
    for (const transfer of this.#transfers.values()) {
      if (transfer.links.length > 0)
        transfer.leftBytes = Math.max(0, transfer.leftBytes - transfer.bytesPerMs * passed);
      else transfer.leftBytes = 0;
    }
  }

  /** Progressive filling: the link with the smallest equal part decides for its transfers; then the next one. */
  #share(): void {
    const free = new Map<number, { bytesPerMs: number; transfers: Set<Transfer> }>();
    for (const transfer of this.#transfers.values()) {
      if (transfer.links.length === 0) transfer.endMs = this.#nowMs;
      for (const link of transfer.links) {
        let entry = free.get(link);
        if (entry === undefined) {
          entry = { bytesPerMs: this.#bytesPerMs[link]!, transfers: new Set() };
          free.set(link, entry);
        }
        entry.transfers.add(transfer);
      }
    }
    while (free.size > 0) {
      const [link, part] = busiest(free);
      for (const transfer of free.get(link)!.transfers) {
        transfer.bytesPerMs = part;
        transfer.endMs = transfer.leftBytes === 0 ? this.#nowMs : this.#nowMs + transfer.leftBytes / part;
        for (const other of transfer.links) {
          const entry = free.get(other)!;
          entry.bytesPerMs = Math.max(0, entry.bytesPerMs - part);
          entry.transfers.delete(transfer);
          if (entry.transfers.size === 0) free.delete(other);
        }
      }
    }
    this.#nextMs = never;
    for (const transfer of this.#transfers.values()) this.#nextMs = Math.min(this.#nextMs, transfer.endMs);
  }
}

function busiest(free: Map<number, { bytesPerMs: number; transfers: Set<Transfer> }>): [link: number, part: number] {
  let found: [number, number] = [0, never];
  for (const [link, { bytesPerMs, transfers }] of free) {
    const part = bytesPerMs / transfers.size;
    if (part < found[1] || found[1] === never) found = [link, part];
  }
  return found;
}

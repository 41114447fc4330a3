import { Spread } from "./forward-pass.ts";
import type { Sequence } from "./sequence.ts";

/** Who waits for admission, best first: by priority, then in order of arrival. Keeps the sums for the pass metrics. */
export class WaitingLine {
  /** Prompts that have given nothing yet. */
  readonly prompts = new Spread();
  /** Contexts of preempted ones that had begun to give tokens. */
  readonly contexts = new Spread();
  #line: Sequence[] = [];
  #head = 0;

  get length(): number {
    return this.#line.length - this.#head;
  }

  /** Tokens of all that wait. */
  get tokens(): number {
    return this.prompts.sum + this.contexts.sum;
  }

  at(index: number): Sequence | undefined {
    return this.#line[this.#head + index];
  }

  push(sequence: Sequence): void {
    this.#spreadOf(sequence).add(sequence.known);
    let place = this.#line.length;
    while (place > this.#head && this.#line[place - 1]!.priority < sequence.priority) place -= 1;
    this.#line.splice(place, 0, sequence);
  }

  /** To the very front: it had its turn already. */
  pushFront(sequence: Sequence): void {
    this.#spreadOf(sequence).add(sequence.known);
    if (this.#head > 0) {
      this.#head -= 1;
      this.#line[this.#head] = sequence;
    } else this.#line.unshift(sequence);
  }

  shift(): void {
    const first = this.at(0);
    if (first === undefined) return;
    this.#spreadOf(first).remove(first.known);
    this.#head += 1;
    // Cutting off what has left when it is half of the array keeps both the time and the memory linear.
    if (this.#head * 2 > this.#line.length) {
      this.#line = this.#line.slice(this.#head);
      this.#head = 0;
    }
  }

  remove(sequence: Sequence): boolean {
    const place = this.#line.indexOf(sequence, this.#head);
    if (place < 0) return false;
    this.#spreadOf(sequence).remove(sequence.known);
    this.#line.splice(place, 1);
    return true;
  }

  /** Replaces the order. `ordered` must hold the same sequences. */
  reorder(ordered: Sequence[]): void {
    this.#line = ordered;
    this.#head = 0;
  }

  toArray(): Sequence[] {
    return this.#line.slice(this.#head);
  }

  #spreadOf(sequence: Sequence): Spread {
    return sequence.given > 0 ? this.contexts : this.prompts;
  }
}

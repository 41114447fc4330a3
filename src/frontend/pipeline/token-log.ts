const FIRST_CAPACITY = 32;

/** The tokens of one sequence, kept as long as there are at most `limit` of them. */
export class TokenLog {
  readonly #limit: number;
  #tokens: Uint32Array | undefined = new Uint32Array(0);
  #length = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Undefined once there were too many. Valid until the next `append`. */
  get tokens(): Uint32Array | undefined {
    return this.#tokens?.subarray(0, this.#length);
  }

  append(tokens: Uint32Array, from: number, to: number): void {
    if (this.#tokens === undefined) return;
    const length = this.#length + to - from;
    if (length > this.#limit) {
      this.#tokens = undefined;
      return;
    }
    if (length > this.#tokens.length) {
      const grown = new Uint32Array(Math.min(this.#limit, Math.max(FIRST_CAPACITY, length, this.#tokens.length * 2)));
      grown.set(this.#tokens);
      this.#tokens = grown;
    }
    for (let i = from, at = this.#length; i < to; i++, at++) this.#tokens[at] = tokens[i]!;
    this.#length = length;
  }
}

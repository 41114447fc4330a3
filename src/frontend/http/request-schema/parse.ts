/** What a parser of a request body gives. */
export interface Parsed<Request> {
  readonly request: Request;
  /** Harmless fields that were left out; the answer names them in x-stator-ignored. */
  readonly ignored: readonly string[];
}

export interface ParseLimits {
  readonly maxMessages: number;
}

import { traceError, traceLines } from "./trace-lines.ts";
import type { TextSource, TraceRequest } from "./trace-request.ts";

export interface MooncakeOptions {
  /** Tokens behind one hash id. The published traces use 512. */
  readonly blockTokens?: number;
}

/**
 * Reads a trace in Mooncake's format: one JSON object a line with `timestamp` (ms; also `created_time`), `input_length`
 * (`input_tokens`), `output_length` (`output_tokens`), `hash_ids`, and for closed loops `session_id` and `delay`
 * (`delay_ms`). Times are counted from the first row. A follow-up of a session has a delay, or a timestamp from which
 * the delay follows. Source: the trace release of Mooncake (FAST '25) and its extensions.
 */
export async function* parseMooncake(source: TextSource, options: MooncakeOptions = {}): AsyncGenerator<TraceRequest> {
  const blockTokens = options.blockTokens ?? 512;
  const lastArrival = new Map<string, number>();
  let origin: number | undefined;
  for await (const { text, line } of traceLines(source)) {
    if (text.trim() === "") continue;
    const row = new Row(text, line);
    const timestamp = row.number(["timestamp", "created_time"], 0);
    const session = row.text("session_id");
    const delay = row.number(["delay", "delay_ms"], 0);
    const before = session === undefined ? undefined : lastArrival.get(session);
    if (delay !== undefined && before === undefined) {
      throw traceError(line, "delay", "stands on a row that does not continue a session");
    }
    if (timestamp !== undefined) origin ??= timestamp;
    const arrivalMs =
      timestamp === undefined ? (before ?? Number.NaN) + (delay ?? Number.NaN) : timestamp - (origin ?? 0);
    if (Number.isNaN(arrivalMs)) throw traceError(line, "timestamp", "is missing");
    if (arrivalMs < 0) throw traceError(line, "timestamp", "is earlier than the first row's");
    const inputTokens = row.count(["input_length", "input_tokens"]);
    const blockIds = row.blockIds();
    const covered = blockIds.length * blockTokens;
    const request = {
      arrivalMs,
      // The reference clamps a length that its ids do not cover; ids beyond the prompt's last block are dropped.
      inputTokens: blockIds.length > 0 ? Math.min(inputTokens, covered) : inputTokens,
      outputTokens: row.count(["output_length", "output_tokens"]),
      blockIds: blockIds.slice(0, Math.ceil(inputTokens / blockTokens)),
      blockTokens,
    };
    if (session === undefined) {
      yield request;
      continue;
    }
    lastArrival.set(session, arrivalMs);
    if (before === undefined) yield { ...request, session };
    else yield { ...request, session, delayMs: delay ?? Math.max(0, arrivalMs - before) };
  }
}

/** One line's object, and typed access to its fields. */
class Row {
  readonly #fields: Record<string, unknown>;
  readonly #line: number;

  constructor(text: string, line: number) {
    let parsed: unknown;
    try {
      parsed = JSON.parse(text);
    } catch {
      throw traceError(line, undefined, "is not JSON");
    }
    if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
      throw traceError(line, undefined, "is not a JSON object");
    }
    this.#fields = parsed as Record<string, unknown>;
    this.#line = line;
  }

  number(names: readonly string[], min: number): number | undefined {
    const name = names.find((candidate) => this.#fields[candidate] !== undefined && this.#fields[candidate] !== null);
    if (name === undefined) return undefined;
    const value = this.#fields[name];
    if (typeof value !== "number" || !Number.isFinite(value) || value < min) {
      throw traceError(this.#line, name, `must be a number of at least ${min}`);
    }
    return value;
  }

  count(names: readonly [string, ...string[]]): number {
    const value = this.number(names, 1);
    if (value === undefined) throw traceError(this.#line, names[0], "is missing");
    if (!Number.isSafeInteger(value)) throw traceError(this.#line, names[0], "must be a whole number");
    return value;
  }

  text(name: string): string | undefined {
    const value = this.#fields[name];
    if (value === undefined || value === null) return undefined;
    if (typeof value !== "string" && typeof value !== "number") throw traceError(this.#line, name, "must be a text");
    return String(value);
  }

  blockIds(): number[] {
    const ids = this.#fields.hash_ids ?? [];
    if (!Array.isArray(ids)) throw traceError(this.#line, "hash_ids", "must be a list");
    for (const id of ids) {
      if (!Number.isSafeInteger(id) || id < 0)
        throw traceError(this.#line, "hash_ids", "must hold whole numbers from 0");
    }
    return ids as number[];
  }
}

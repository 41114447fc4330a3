import { StatorError } from "../protocol/errors.ts";
import type { TextSource } from "./trace-request.ts";

/** A line of 4 Mi characters holds the block ids of a prompt of hundreds of millions of tokens. */
const maxLineLength = 4 * 1024 * 1024;

/**
 * The lines of a source, numbered from 1, without their ends and a byte order mark. The bound keeps a file without line
 * ends out of memory.
 */
export async function* traceLines(source: TextSource): AsyncGenerator<{ text: string; line: number }> {
  let rest = "";
  let line = 0;
  for await (const chunk of source) {
    let from = 0;
    for (let end = chunk.indexOf("\n"); end >= 0; end = chunk.indexOf("\n", from)) {
      line += 1;
      yield { text: contentOf(rest + chunk.slice(from, end), line), line };
      rest = "";
      from = end + 1;
    }
    rest += chunk.slice(from);
    if (rest.length > maxLineLength)
      throw traceError(line + 1, undefined, `is longer than ${maxLineLength} characters`);
  }
  if (rest !== "") yield { text: contentOf(rest, line + 1), line: line + 1 };
}

function contentOf(text: string, line: number): string {
  const from = line === 1 && text.startsWith("\ufeff") ? 1 : 0;
  return text.slice(from, text.endsWith("\r") ? -1 : undefined);
}

/** The error of every parser: which line, which field, what is wrong with it. */
export function traceError(line: number, field: string | undefined, problem: string): StatorError {
  const place = field === undefined ? `Line ${line} of the trace` : `Line ${line} of the trace: ${field}`;
  return new StatorError("invalid_value", `${place} ${problem}`, field === undefined ? {} : { param: field });
}

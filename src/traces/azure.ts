import { traceError, traceLines } from "./trace-lines.ts";
import type { TextSource, TraceRequest } from "./trace-request.ts";

const columns = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"] as const;
const timePattern = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(?:Z|\+00:00)?$/;

/**
 * Reads the Azure LLM inference traces (2023 and 2024): CSV with TIMESTAMP (UTC), ContextTokens and GeneratedTokens.
 * They say nothing about the prompts' content, so nothing is shared. Rows without tokens on a side count as one token.
 */
export async function* parseAzure(source: TextSource): AsyncGenerator<TraceRequest> {
  let origin: number | undefined;
  for await (const { text, line } of traceLines(source)) {
    const cells = text.split(",");
    if (line === 1) {
      const wrong = columns.find((name, at) => cells[at]?.trim() !== name);
      if (wrong !== undefined) throw traceError(line, wrong, "is not where the header should have it");
      continue;
    }
    if (text === "") continue;
    const at = milliseconds(cells[0] ?? "", line);
    origin ??= at;
    if (at < origin) throw traceError(line, "TIMESTAMP", "is earlier than the first row's");
    yield {
      arrivalMs: at - origin,
      inputTokens: Math.max(1, count(cells[1], "ContextTokens", line)),
      outputTokens: Math.max(1, count(cells[2], "GeneratedTokens", line)),
      blockIds: [],
      blockTokens: 1,
    };
  }
}

function milliseconds(text: string, line: number): number {
  const parts = timePattern.exec(text);
  if (parts === null) throw traceError(line, "TIMESTAMP", "must look like 2023-11-16 18:15:46.6805900");
  const [, day, time, fraction = "0"] = parts;
  const seconds = Date.parse(`${day}T${time}Z`);
  // A 30th of February would be one of March.
  if (Number.isNaN(seconds) || !new Date(seconds).toISOString().startsWith(`${day}T${time}`)) {
    throw traceError(line, "TIMESTAMP", "is no day or time that there is");
  }
  return seconds + Number(fraction) * 1000;
}

function count(cell: string | undefined, field: string, line: number): number {
  if (cell === undefined || !/^\s*\d+\s*$/.test(cell)) throw traceError(line, field, "must be a whole number from 0");
  return Number(cell);
}

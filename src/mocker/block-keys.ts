import type { TraceRequest } from "../traces/trace-request.ts";

/**
 * The keys of a request's full blocks in an engine's block size, from the trace's prefix-chained ids. A block of the
 * engine is named after the trace block in which its last token lies, and its number among those that end there:
 *
 *     trace ids    |        7        |        9        |      blocks of 512
 *     engine       | 7.0 7.1 7.2 7.3 | 9.0 9.1 ...            blocks of 128
 *     engine       |            7.0  |          9.0 | ...     blocks of 400: the second ends in trace block 9
 *
 * Equal keys mean equal content up to there, because the trace's ids do. Safe integers while ids stay below 2^53 / blocks.
 */
export function engineBlockKeys(request: TraceRequest, blockTokens: number): number[] {
  const { blockIds, blockTokens: traceTokens } = request;
  if (blockIds.length === 0) return [];
  // Ids that go beyond the prompt name the answer, and are good to the end of it.
  const named = blockIds.length * traceTokens;
  const goesBeyond = named >= request.inputTokens + traceTokens;
  const tokens = Math.min(named, request.inputTokens + (goesBeyond ? request.outputTokens : 0));
  const keys = new Array<number>(Math.floor(tokens / blockTokens));
  const perTraceBlock = Math.ceil(traceTokens / blockTokens);
  let within = 0;
  let before = -1;
  for (let index = 0; index < keys.length; index++) {
    const traceBlock = Math.floor(((index + 1) * blockTokens - 1) / traceTokens);
    within = traceBlock === before ? within + 1 : 0;
    before = traceBlock;
    keys[index] = (blockIds[traceBlock] ?? 0) * perTraceBlock + within;
  }
  return keys;
}

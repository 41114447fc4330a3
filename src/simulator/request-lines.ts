import { hasObjectives, meetsSlo, type Slo } from "../protocol/slo.ts";
import { outcomeNames, outcomes, type RequestLog } from "./request-log.ts";

/**
 * One line of JSON for each request, in the order of the workload. Times are virtual ms from the start of the workload
 * (`*_at_ms`) or durations; null for what has not happened.
 */
export function* requestLines(log: RequestLog, slo: Slo, configuration?: string): Generator<string> {
  const { requests, outcome, given, firstCachedTokens } = log;
  for (const [id, { session, arrivalMs, inputTokens, outputTokens }] of requests.entries()) {
    const completed = outcome[id] === outcomes.completed;
    const line = {
      ...(configuration === undefined ? {} : { configuration }),
      request: id,
      ...(session === undefined ? {} : { session }),
      outcome: outcomeNames[outcome[id]!],
      arrival_at_ms: arrivalMs,
      dispatched_at_ms: known(log.dispatchedMs[id]!),
      first_token_at_ms: known(log.firstTokenMs[id]!),
      ended_at_ms: known(log.endedMs[id]!),
      input_tokens: inputTokens,
      migrations: log.migrations[id]!,
      cached_tokens: firstCachedTokens[id]!,
      output_tokens: given[id]!,
      wanted_output_tokens: outputTokens,
      ttft_ms: known(log.ttftMs(id)),
      tpot_ms: log.tpotMs(id) ?? null,
      e2e_ms: known(log.e2eMs(id)),
      ...(hasObjectives(slo) ? { met_slo: completed && meetsSlo(log.times(id), slo) } : {}),
    };
    yield `${JSON.stringify(line)}\n`;
  }
}

function known(ms: number): number | null {
  return Number.isNaN(ms) ? null : ms;
}

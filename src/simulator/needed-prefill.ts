import { engineBlockKeys } from "../mocker/block-keys.ts";
import { outcomes, type RequestLog } from "./request-log.ts";

/**
 * Prompt tokens of the completed requests that one endless cache for the whole fleet would have left to compute: the
 * least that any placement needs. A block counts as there as soon as a request that has it is sent; at least the last
 * token of a prompt always has to be computed.
 */
export function neededPrefillTokens(log: RequestLog, blockTokens: number): number {
  const { requests, outcome, dispatchedMs } = log;
  const completed = [...requests.keys()].filter((id) => outcome[id] === outcomes.completed);
  completed.sort((one, other) => dispatchedMs[one]! - dispatchedMs[other]! || one - other);
  const seen = new Set<number>();
  let needed = 0;
  for (const id of completed) {
    const request = requests[id]!;
    const keys = engineBlockKeys(request, blockTokens);
    const most = Math.min(keys.length, Math.floor((request.inputTokens - 1) / blockTokens));
    let known = 0;
    while (known < most && seen.has(keys[known]!)) known += 1;
    for (const key of keys) seen.add(key);
    needed += request.inputTokens - known * blockTokens;
  }
  return needed;
}

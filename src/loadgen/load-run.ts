import { setTimeout as delay } from "node:timers/promises";
import type { TraceRequest } from "../traces/trace-request.ts";
import type { OpenAiClient, RequestRecord } from "./openai-client.ts";
import type { Prompts } from "./prompt-maker.ts";

export interface LoadRunOptions {
  /** In order of arrival; a session's turns in order. */
  readonly requests: Iterable<TraceRequest> | AsyncIterable<TraceRequest>;
  /** `schedule` = send at the trace's times; `closed` = as soon as there is room. */
  readonly loop: "schedule" | "closed";
  /** Most requests (sessions keep their place between turns) at once. */
  readonly concurrency: number;
  readonly client: OpenAiClient;
  readonly prompts: Prompts;
  readonly signal: AbortSignal;
  /** Called after each change. */
  readonly onProgress?: (progress: Progress) => void;
}

export interface Progress {
  /** Requests that there are going to be. */
  readonly total: number;
  readonly sent: number;
  readonly inFlight: number;
  readonly done: number;
  readonly failed: number;
  /** Set when it was one that has just ended. */
  readonly ended?: RequestRecord;
}

/** A session's turns, or one request, that run one after the other. */
interface Chain {
  readonly turns: TraceRequest[];
}

/**
 * Sends a workload and records how each request went. In `schedule` a chain begins at its first arrival; a follow-up is
 * sent its delay after the end of the previous answer, in both loops.
 */
export async function runLoad(options: LoadRunOptions): Promise<readonly RequestRecord[]> {
  const { loop, concurrency, client, prompts, signal, onProgress } = options;
  const records: RequestRecord[] = [];
  const chains = await chainsOf(options.requests);
  const places = new Places(concurrency);
  const running = new Set<Promise<void>>();
  const total = chains.reduce((sum, { turns }) => sum + turns.length, 0);
  const count = { total, sent: 0, inFlight: 0, done: 0, failed: 0 };
  const beganAtMs = performance.now();

  const send = async (turn: TraceRequest, text: string, plannedAtMs: number | undefined): Promise<void> => {
    const lateMs = plannedAtMs === undefined ? 0 : Math.max(0, performance.now() - plannedAtMs);
    count.sent++;
    count.inFlight++;
    onProgress?.(count);
    const record = await client.send(text, turn.outputTokens, lateMs, signal);
    count.inFlight--;
    count.done++;
    if (record.error !== undefined) count.failed++;
    records.push(record);
    onProgress?.({ ...count, ended: record });
  };

  const play = async ({ turns }: Chain, firstText: string, plannedAtMs: number | undefined): Promise<void> => {
    try {
      for (const [i, turn] of turns.entries()) {
        if (signal.aborted) return;
        if (i > 0) await sleep(turn.delayMs ?? 0, signal);
        if (i === 0) await send(turn, firstText, plannedAtMs);
        else await send(turn, prompts.textOf(turn), undefined);
      }
    } finally {
      places.leave();
    }
  };

  for (const chain of chains) {
    const plannedAtMs = loop === "schedule" ? beganAtMs + chain.turns[0]!.arrivalMs : undefined;
    // A long text takes time to make: ahead of its time, so that it is not late.
    const text = prompts.textOf(chain.turns[0]!);
    if (plannedAtMs !== undefined) await sleep(plannedAtMs - performance.now(), signal);
    await places.enter(signal);
    if (signal.aborted) break;
    const played = play(chain, text, plannedAtMs).finally(() => running.delete(played));
    running.add(played);
  }
  await Promise.all(running);
  return records;
}

async function chainsOf(requests: LoadRunOptions["requests"]): Promise<Chain[]> {
  const chains: Chain[] = [];
  const sessions = new Map<string, Chain>();
  for await (const request of requests) {
    const known = request.session === undefined ? undefined : sessions.get(request.session);
    if (known !== undefined) {
      known.turns.push(request);
      continue;
    }
    const chain = { turns: [request] };
    chains.push(chain);
    if (request.session !== undefined) sessions.set(request.session, chain);
  }
  return chains.sort((a, b) => a.turns[0]!.arrivalMs - b.turns[0]!.arrivalMs);
}

/** Room for so many at once. */
class Places {
  #free: number;
  #waiting: (() => void) | undefined;

  constructor(count: number) {
    this.#free = count;
  }

  /** One caller at a time. */
  async enter(signal: AbortSignal): Promise<void> {
    if (this.#free === 0 && !signal.aborted) {
      await new Promise<void>((resolve) => {
        const go = (): void => {
          signal.removeEventListener("abort", go);
          resolve();
        };
        this.#waiting = go;
        signal.addEventListener("abort", go, { once: true });
      });
      this.#waiting = undefined;
    }
    this.#free--;
  }

  leave(): void {
    this.#free++;
    this.#waiting?.();
  }
}

async function sleep(ms: number, signal: AbortSignal): Promise<void> {
  if (ms > 0) await delay(ms, undefined, { signal }).catch(() => {});
}

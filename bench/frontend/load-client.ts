import { setTimeout as sleep } from "node:timers/promises";
import { type Answer, LoadConnection, postBytes } from "./http-load.js";

/*
 * The load generator, a process of its own so that its CPU time is nobody else's. Argument: a LoadPlan as JSON; standard
 * output: a LoadResult as JSON.
 */

export interface LoadPlan {
  readonly port: number;
  readonly body: unknown;
  /** Closed loop: so many connections, each sends its next request when the last one is answered. */
  readonly connections: number;
  readonly durationMs: number;
  /** Closed loop: so many requests per connection instead of `durationMs`. */
  readonly requestsPerConnection?: number;
  /** Closed loop: the connections start spread over this time, so that paced streams do not move in step. */
  readonly spreadMs?: number;
  /** Open loop instead: requests per second, Poisson arrivals over the connections. */
  readonly ratePerSecond?: number;
  /** completion_tokens that each answer must report; a different one is a failure. */
  readonly expectedTokens: number;
}

export interface LoadResult {
  readonly requests: number;
  readonly failures: number;
  readonly tokens: number;
  readonly seconds: number;
  /**
   * From sending to the last byte, sorted. In the open loop a request that found no free connection counts from its
   * planned time; the others from when they were sent, which is up to a millisecond late: a generator that spins to be
   * on time takes a core from what it measures.
   */
  readonly latenciesMs: readonly number[];
}

const plan = JSON.parse(process.argv[2]!) as LoadPlan;
const request = postBytes("/v1/chat/completions", plan.body);
const latenciesMs: number[] = [];
let failures = 0;
let tokens = 0;

const connections = await Promise.all(Array.from({ length: plan.connections }, () => LoadConnection.open(plan.port)));
const startedAt = performance.now();
await (plan.ratePerSecond === undefined ? closedLoop() : openLoop(plan.ratePerSecond));
const seconds = (performance.now() - startedAt) / 1000;
for (const connection of connections) connection.close();
latenciesMs.sort((a, b) => a - b);
const result: LoadResult = { requests: latenciesMs.length, failures, tokens, seconds, latenciesMs };
process.stdout.write(JSON.stringify(result));

async function closedLoop(): Promise<void> {
  const endAt = startedAt + plan.durationMs;
  await Promise.all(
    connections.map(async (connection, i) => {
      await sleep((i / connections.length) * (plan.spreadMs ?? 0));
      let sent = 0;
      do note(await connection.send(request));
      while (
        plan.requestsPerConnection === undefined ? performance.now() < endAt : ++sent < plan.requestsPerConnection
      );
    }),
  );
}

async function openLoop(rate: number): Promise<void> {
  const idle = [...connections];
  const waiting: number[] = [];
  const running = new Set<Promise<void>>();
  const endAt = startedAt + plan.durationMs;
  let nextAt = startedAt;
  const start = (connection: LoadConnection, plannedAt: number): void => {
    const run = connection.send(request).then((answer) => {
      note(answer, plannedAt);
      const next = waiting.shift();
      if (next === undefined) idle.push(connection);
      else start(connection, next);
    });
    running.add(run);
    void run.finally(() => running.delete(run));
  };
  while (nextAt < endAt) {
    const wait = nextAt - performance.now();
    if (wait > 0) {
      await sleep(wait);
      continue;
    }
    const connection = idle.pop();
    if (connection) start(connection, performance.now());
    else waiting.push(nextAt);
    nextAt += (-Math.log(1 - Math.random()) / rate) * 1000;
  }
  while (running.size > 0) await Promise.all(running);
}

function note(answer: Answer, plannedAt: number = answer.startedAt): void {
  const reported = Number(/"completion_tokens":(\d+)/.exec(answer.tail)?.[1] ?? -1);
  if (answer.status !== 200 || reported !== plan.expectedTokens) failures += 1;
  else tokens += reported;
  latenciesMs.push(answer.endedAt - plannedAt);
}

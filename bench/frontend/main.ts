import { parseArgs } from "node:util";
import type { LoadPlan, LoadResult } from "./load-client.js";
import { Processes, processUsage, type ServerUnderTest } from "./processes.js";

/*
 * `npm run bench -- frontend [--rounds N] [--seconds N] [--streams 1,16,128,512]`
 *
 *   load client ---HTTP---> stator frontend ---request plane---> echo worker
 *   load client ---HTTP---> bare node:http server
 *
 * All in processes of their own, the two servers in turn, medians over the rounds. CPU and memory are the frontend's (or
 * the bare server's) alone.
 */

const { values } = parseArgs({
  args: process.argv.slice(2),
  options: {
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "4" },
    streams: { type: "string", default: "1,16,128,512" },
    json: { type: "boolean", default: false },
  },
});
const rounds = Number(values.rounds);
const durationMs = Number(values.seconds) * 1000;
const streamCounts = values.streams.split(",").map(Number);
const PACED_RATE = 1000 / 15;
/** Per answer. Paced: between the mean answers of two public conversation traces (Azure 2023: 211, Mooncake: 343). */
const tokensOf = { closed: 128, paced: 256 };
const pacedAnswerMs = tokensOf.paced * 15;
const pacedRounds = Math.max(1, Math.round(durationMs / pacedAnswerMs));

interface Row {
  readonly mode: "closed" | "paced";
  readonly streams: number;
  readonly server: string;
  readonly requestsPerSecond: number;
  readonly tokensPerSecond: number;
  readonly cpuMicrosPerToken: number;
  readonly cpuMillisPerRequest: number;
  readonly tokensPerCpuSecond: number;
  readonly rssMegabytes: number;
  readonly failures: number;
}

const processes = new Processes();
process.once("SIGINT", () => {
  processes.close();
  process.exit(130);
});
try {
  const rows: Row[] = [];
  let capacity = 0;
  for (const [mode, rate] of [
    ["closed", 0],
    ["paced", PACED_RATE],
  ] as const) {
    const servers = [await processes.stator(rate), await processes.bare(rate)];
    for (const streams of streamCounts) {
      const samples = new Map<ServerUnderTest, Row[]>(servers.map((server) => [server, []]));
      for (let round = 0; round <= rounds; round++) {
        for (const server of servers) {
          const row = await measure(mode, streams, server);
          if (round > 0) samples.get(server)!.push(row); // the first round warms up
        }
      }
      for (const server of servers) rows.push(medianRow(samples.get(server)!));
    }
    if (mode === "closed") capacity = await measureCapacity(servers[0]!);
  }
  const latency = await measureLatency(capacity);
  if (values.json) process.stdout.write(`${JSON.stringify({ rows, capacity, latency }, undefined, 2)}\n`);
  else print(rows, capacity, latency);
} finally {
  processes.close();
}

async function load(plan: LoadPlan): Promise<LoadResult> {
  return JSON.parse(await processes.run("./load-client.js", JSON.stringify(plan))) as LoadResult;
}

async function measure(mode: "closed" | "paced", streams: number, server: ServerUnderTest): Promise<Row> {
  const body = {
    model: "stator-echo",
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: tokensOf[mode],
    messages: [{ role: "user", content: "x".repeat(200) }],
  };
  const pacing = mode === "paced" ? { requestsPerConnection: pacedRounds, spreadMs: pacedAnswerMs } : {};
  const plan = { port: server.port, body, connections: streams, durationMs, expectedTokens: tokensOf[mode], ...pacing };
  const before = processUsage(server.pid);
  const result = await load(plan);
  const after = processUsage(server.pid);
  const cpuSeconds = after.cpuSeconds - before.cpuSeconds;
  return {
    mode,
    streams,
    server: server.name,
    requestsPerSecond: result.requests / result.seconds,
    tokensPerSecond: result.tokens / result.seconds,
    cpuMicrosPerToken: (cpuSeconds * 1e6) / result.tokens,
    cpuMillisPerRequest: (cpuSeconds * 1e3) / result.requests,
    tokensPerCpuSecond: result.tokens / cpuSeconds,
    rssMegabytes: after.rssBytes / 1e6,
    failures: result.failures,
  };
}

function oneKilobyteChat(): unknown {
  return { model: "stator-echo", max_tokens: 1, messages: [{ role: "user", content: "y".repeat(1024) }] };
}

async function measureCapacity(server: ServerUnderTest): Promise<number> {
  const result = await load({
    port: server.port,
    body: oneKilobyteChat(),
    connections: 16,
    durationMs,
    expectedTokens: 1,
  });
  return result.requests / result.seconds;
}

interface Latency {
  readonly ratePerSecond: number;
  readonly stator: { p50: number; p99: number };
  readonly bare: { p50: number; p99: number };
}

async function measureLatency(capacityPerSecond: number): Promise<Latency> {
  const ratePerSecond = capacityPerSecond * 0.3;
  const servers = { stator: await processes.stator(0), bare: await processes.bare(0) };
  const samples = { stator: [] as { p50: number; p99: number }[], bare: [] as { p50: number; p99: number }[] };
  for (const name of ["stator", "bare"] as const) await measureCapacity(servers[name]); // warms up
  for (let round = 0; round < rounds; round++) {
    for (const name of ["stator", "bare"] as const) {
      const plan = {
        port: servers[name].port,
        body: oneKilobyteChat(),
        connections: 64,
        durationMs,
        ratePerSecond,
        expectedTokens: 1,
      };
      const { latenciesMs } = await load(plan);
      samples[name].push({ p50: quantile(latenciesMs, 0.5), p99: quantile(latenciesMs, 0.99) });
    }
  }
  const settle = (all: { p50: number; p99: number }[]) => ({
    p50: median(all.map((s) => s.p50)),
    p99: median(all.map((s) => s.p99)),
  });
  return { ratePerSecond, stator: settle(samples.stator), bare: settle(samples.bare) };
}

function medianRow(rows: readonly Row[]): Row {
  const first = rows[0]!;
  const over = (pick: (row: Row) => number): number => median(rows.map(pick));
  return {
    ...first,
    requestsPerSecond: over((row) => row.requestsPerSecond),
    tokensPerSecond: over((row) => row.tokensPerSecond),
    cpuMicrosPerToken: over((row) => row.cpuMicrosPerToken),
    cpuMillisPerRequest: over((row) => row.cpuMillisPerRequest),
    tokensPerCpuSecond: over((row) => row.tokensPerCpuSecond),
    rssMegabytes: over((row) => row.rssMegabytes),
    failures: rows.reduce((sum, row) => sum + row.failures, 0),
  };
}

function median(values: readonly number[]): number {
  return quantile(
    [...values].sort((a, b) => a - b),
    0.5,
  );
}

function quantile(sorted: readonly number[], q: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? Number.NaN;
}

function print(rows: readonly Row[], capacity: number, { ratePerSecond, stator, bare }: Latency): void {
  const out = (line: string): void => void process.stdout.write(`${line}\n`);
  out(
    `Node ${process.versions.node}, tokens per answer: closed ${tokensOf.closed}, paced ${tokensOf.paced} at 15 ms each; medians of ${rounds} rounds`,
  );
  out("");
  out(
    "| mode | streams | server | req/s | tok/s | CPU us/token | ratio | CPU ms/request | tok/s per core | RSS MB | failures |",
  );
  out("|---|---|---|---|---|---|---|---|---|---|---|");
  for (const row of rows) {
    const base = rows.find(
      (other) => other.server === "bare" && other.mode === row.mode && other.streams === row.streams,
    )!;
    out(
      `| ${row.mode} | ${row.streams} | ${row.server} | ${row.requestsPerSecond.toFixed(0)} | ${row.tokensPerSecond.toFixed(0)} | ${row.cpuMicrosPerToken.toFixed(2)} | ${(row.cpuMicrosPerToken / base.cpuMicrosPerToken).toFixed(2)} | ${row.cpuMillisPerRequest.toFixed(3)} | ${row.tokensPerCpuSecond.toFixed(0)} | ${row.rssMegabytes.toFixed(0)} | ${row.failures} |`,
    );
  }
  out("");
  out(
    `1 KB chat, one token: capacity ${capacity.toFixed(0)} req/s; open loop at 30 % (${ratePerSecond.toFixed(0)} req/s):`,
  );
  out(
    `stator p50 ${stator.p50.toFixed(3)} ms, p99 ${stator.p99.toFixed(3)} ms; bare p50 ${bare.p50.toFixed(3)} ms, p99 ${bare.p99.toFixed(3)} ms`,
  );
  out(
    `added p50 ${(stator.p50 - bare.p50).toFixed(3)} ms (target 0.5), added p99 ${(stator.p99 - bare.p99).toFixed(3)} ms (target 2)`,
  );
}

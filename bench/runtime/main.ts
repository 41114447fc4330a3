import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Pair, startNats, usesNats } from "./peers.js";
import { type Kind, kinds, type Order, type StreamsResult, type UnaryResult } from "./plan.js";

/*
 * `npm run bench -- runtime [--rounds N] [--seconds N] [--streams 1,64,1000] [--kinds tcp,grpc] [--json]`
 *
 *   client process == one connection == server process            tcp, tcp+tls, grpc
 *   client process == nats-server == server process               nats, nats-request (its CPU apart)
 *
 * Streams: the server writes a message of 8 bytes to each stream, then the next round, as fast as the connection takes them;
 * or, paced, each stream has one every 15 ms, at its own time. CPU time is of both processes together. The kinds take turns, medians over the rounds.
 */

const { values } = parseArgs({
  args: process.argv.slice(2),
  options: {
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "3" },
    streams: { type: "string", default: "1,64,1000" },
    kinds: { type: "string", default: kinds.join(",") },
    json: { type: "boolean", default: false },
  },
});
const rounds = Number(values.rounds);
const durationMs = Number(values.seconds) * 1000;
const chosen = values.kinds.split(",").filter((it): it is Kind => (kinds as readonly string[]).includes(it));

interface Row {
  readonly what: string;
  readonly kind: Kind;
  /** Calls or messages. */
  readonly perSecond: number;
  readonly perCpuSecond: number;
  readonly brokerCpuShare: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

interface Case {
  readonly what: string;
  readonly order: Order;
}

const streamCounts = values.streams.split(",").map(Number);
const cases: readonly Case[] = [
  ...[1, 64].map((concurrency) => ({
    what: `unary, ${concurrency} at once`,
    order: { what: "unary", concurrency, durationMs } as const,
  })),
  ...streamCounts.map((streams) => ({
    what: `${streams} streams`,
    order: { what: "streams", streams, plan: { durationMs, paceMs: 0 } } as const,
  })),
  {
    what: `${streamCounts.at(-1)} streams, one message per 15 ms`,
    order: { what: "streams", streams: streamCounts.at(-1)!, plan: { durationMs, paceMs: 15 } },
  },
];

const nats = await startNats();
const pairs = new Map<Kind, Pair>();
for (const kind of chosen) {
  pairs.set(kind, await Pair.start({ kind, natsUrl: nats.url, ...testCertificates() }));
}
const rows: Row[] = [];
for (const { what, order } of cases) {
  const samples = new Map<Kind, Row[]>();
  for (let round = 0; round <= rounds; round++) {
    for (const [kind, pair] of pairs) {
      if (kind === "nats-request" && order.what === "streams") continue;
      const row = await measure(what, kind, pair, order);
      if (round > 0) samples.set(kind, [...(samples.get(kind) ?? []), row]); // the first round warms up
    }
  }
  for (const ofKind of samples.values()) rows.push(medianRow(ofKind));
}
for (const pair of pairs.values()) pair.close();
if (values.json) process.stdout.write(`${JSON.stringify(rows, undefined, 2)}\n`);
else print();
process.exit();

async function measure(what: string, kind: Kind, pair: Pair, order: Order): Promise<Row> {
  const brokerBefore = nats.cpuSeconds();
  const { result, cpuSeconds } = await pair.order<UnaryResult | StreamsResult>(order);
  const latencies = "latenciesMs" in result ? [...result.latenciesMs].sort((a, b) => a - b) : [];
  const count = "messages" in result ? result.messages : latencies.length;
  return {
    what,
    kind,
    perSecond: count / result.seconds,
    perCpuSecond: count / cpuSeconds,
    brokerCpuShare: usesNats(kind) ? (nats.cpuSeconds() - brokerBefore) / cpuSeconds : 0,
    p50Ms: latencies[Math.floor(latencies.length * 0.5)] ?? Number.NaN,
    p99Ms: latencies[Math.floor(latencies.length * 0.99)] ?? Number.NaN,
  };
}

function medianRow(samples: readonly Row[]): Row {
  const median = (of: (row: Row) => number): number =>
    samples.map(of).sort((a, b) => a - b)[Math.floor(samples.length / 2)]!;
  return {
    ...samples[0]!,
    perSecond: median((it) => it.perSecond),
    perCpuSecond: median((it) => it.perCpuSecond),
    brokerCpuShare: median((it) => it.brokerCpuShare),
    p50Ms: median((it) => it.p50Ms),
    p99Ms: median((it) => it.p99Ms),
  };
}

function print(): void {
  const out = (line: string): void => void process.stdout.write(`${line}\n`);
  out(`Node ${process.versions.node}, ${rounds} rounds of ${durationMs / 1000} s, medians; CPU of client and server`);
  out("");
  out("| what | plane | per second | per CPU second | against grpc | broker CPU on top | p50 ms | p99 ms |");
  out("|---|---|---|---|---|---|---|---|");
  for (const row of rows) {
    const base = rows.find((other) => other.kind === "grpc" && other.what === row.what);
    const ratio = base ? `${(row.perCpuSecond / base.perCpuSecond).toFixed(2)}x` : "";
    const ms = (value: number): string => (Number.isNaN(value) ? "" : value.toFixed(3));
    const broker = row.brokerCpuShare > 0 ? `${(row.brokerCpuShare * 100).toFixed(0)} %` : "";
    out(
      `| ${row.what} | ${row.kind} | ${row.perSecond.toFixed(0)} | ${row.perCpuSecond.toFixed(0)} | ${ratio} | ${broker} | ${ms(row.p50Ms)} | ${ms(row.p99Ms)} |`,
    );
  }
  const many = `${streamCounts.at(-1)} streams`;
  const of = (kind: Kind): number | undefined =>
    rows.find((row) => row.kind === kind && row.what === many)?.perCpuSecond;
  const [tcp, grpc] = [of("tcp"), of("grpc")];
  if (tcp !== undefined && grpc !== undefined) {
    out("");
    out(`${many}: tcp has ${(tcp / grpc).toFixed(2)} times grpc's messages per CPU second (target 4)`);
  }
}

/** Of the project's own tests: good for 127.0.0.1. */
function testCertificates(): { ca: string; cert: string; key: string } {
  const file = fileURLToPath(new URL("../../../src/runtime/security/test-certificates.contract.ts", import.meta.url));
  const [ca, cert, key] = readFileSync(file, "utf8").match(/-----BEGIN [^`]+-----(?=`)/g) ?? [];
  return { ca: ca!, cert: cert!, key: key! };
}

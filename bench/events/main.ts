import { parseArgs } from "node:util";
import { measureMemory, measureProcesses, type Sample } from "./measure.js";

/*
 * `npm run bench -- events [--rounds N] [--events N] [--payload BYTES] [--per-tick N]`
 *
 *   memory       publisher and subscriber of the event plane in one process
 *   zmq          the same in two processes, over loopback
 *   raw          zeromq alone, one message for each event
 *   raw-packed   zeromq alone, one message for each tick, which the receiver does not even split: the floor
 *
 * The subscriber bounds how far the publisher is ahead, so that nothing is lost. Medians over the rounds.
 */

const { values } = parseArgs({
  args: process.argv.slice(2),
  options: {
    rounds: { type: "string", default: "5" },
    events: { type: "string", default: "1000000" },
    payload: { type: "string", default: "100" },
    "per-tick": { type: "string", default: "100" },
    json: { type: "boolean", default: false },
  },
});
const rounds = Number(values.rounds);
const load = {
  events: Number(values.events),
  payloadBytes: Number(values.payload),
  eventsPerTick: Number(values["per-tick"]),
};
const measures: Record<string, () => Promise<Sample>> = {
  memory: () => measureMemory(load),
  zmq: () => measureProcesses("stator", load),
  raw: () => measureProcesses("raw", load),
  "raw-packed": () => measureProcesses("raw-packed", load),
};
const samples = new Map<string, Sample[]>(Object.keys(measures).map((plane) => [plane, []]));
for (let round = 0; round <= rounds; round++) {
  for (const [plane, measure] of Object.entries(measures)) {
    const sample = await measure();
    if (round > 0) samples.get(plane)!.push(sample); // the first round warms up
  }
}
const rows = [...samples].map(([plane, of]) => ({
  plane,
  eventsPerSecond: median(of.map((it) => it.eventsPerSecond)),
  publisherMicrosPerEvent: median(of.map((it) => it.publisherMicrosPerEvent)),
  subscriberMicrosPerEvent: median(of.map((it) => it.subscriberMicrosPerEvent)),
}));
print();

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}

function print(): void {
  if (values.json) {
    process.stdout.write(`${JSON.stringify({ rows }, undefined, 2)}\n`);
    return;
  }
  const out = (line: string): void => void process.stdout.write(`${line}\n`);
  out(
    `Node ${process.versions.node}, ${load.events} events of ${load.payloadBytes} bytes, ${load.eventsPerTick} per tick; medians of ${rounds} rounds`,
  );
  out("");
  out("| plane | events/s | CPU us/event, publisher | CPU us/event, subscriber |");
  out("|---|---|---|---|");
  for (const { plane, eventsPerSecond, publisherMicrosPerEvent, subscriberMicrosPerEvent } of rows) {
    const subscriber = plane === "memory" ? "(the same process)" : subscriberMicrosPerEvent.toFixed(3);
    out(`| ${plane} | ${eventsPerSecond.toFixed(0)} | ${publisherMicrosPerEvent.toFixed(3)} | ${subscriber} |`);
  }
}

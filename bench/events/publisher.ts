import { once } from "node:events";
import { EventPublisher, ZmqEventTransport } from "stator/runtime";
import { Publisher } from "zeromq";
import { type FromPublisher, originOf, type PublisherPlan, type ToPublisher } from "./plan.js";

/*
 * The publishing process of a round. It publishes as far as the subscriber allows (`limit`), so that what is measured is
 * a rate without losses, and tells what CPU time it took.
 */

const plan = JSON.parse(process.argv[2]!) as PublisherPlan;
const payload = new Uint8Array(plan.payloadBytes).fill(7);
let limit = 0;
let wake: (() => void) | undefined;

const { address, publish } = await (plan.mode === "stator" ? openStator() : openRaw());
process.on("message", (message: ToPublisher) => {
  limit = message.limit;
  wake?.();
});
process.once("disconnect", () => process.exit());
tell({ address });
while (limit === 0) await allowed();
const before = process.cpuUsage();
for (let sent = 0; sent < plan.events; ) {
  while (sent >= limit) await allowed();
  const count = Math.min(plan.eventsPerTick, limit - sent, plan.events - sent);
  await publish(count);
  sent += count;
}
const { user, system } = process.cpuUsage(before);
tell({ cpuMicros: user + system });
await once(process, "disconnect");

function allowed(): Promise<void> {
  return new Promise((resolve) => {
    wake = resolve;
  });
}

function tell(message: FromPublisher): void {
  process.send!(message);
}

interface Way {
  readonly address: string;
  publish(count: number): Promise<void>;
}

async function openStator(): Promise<Way> {
  const transport = await ZmqEventTransport.open();
  const publisher = await EventPublisher.open(transport, originOf("bench"), { heartbeatMs: 100 });
  return {
    address: publisher.address,
    async publish(count) {
      for (let i = 0; i < count; i++) publisher.publish(payload);
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

/** One message for each event, or (`raw-packed`) one for all of a tick: the floor, without any of the plane's work. */
async function openRaw(): Promise<Way> {
  const socket = new Publisher({ linger: 0, sendHighWaterMark: 0 });
  await socket.bind("tcp://127.0.0.1:*");
  const hello = setInterval(() => {
    if (limit > 0) clearInterval(hello);
    else void socket.send("");
  }, 20);
  const packed = new Uint8Array(plan.payloadBytes * plan.eventsPerTick).fill(7);
  return {
    address: socket.lastEndpoint!,
    async publish(count) {
      if (plan.mode === "raw-packed") await socket.send(packed.subarray(0, count * plan.payloadBytes));
      else for (let i = 0; i < count; i++) await socket.send(payload);
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

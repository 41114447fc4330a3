import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import {
  type EventListener,
  EventPublisher,
  EventSubscription,
  MemoryEventBus,
  MemoryEventTransport,
  MemoryNetwork,
  MemoryRequestPlaneClient,
  RequestPlaneReplay,
  ZmqEventTransport,
} from "stator/runtime";
import { Subscriber } from "zeromq";
import { type FromPublisher, type Mode, originOf, type PublisherPlan } from "./plan.js";

/** How far ahead of the subscriber the publisher may be: below the high water mark of frames, so that nothing is lost. */
const windowOf = ({ eventsPerTick }: Load): number => Math.min(50_000, 500 * eventsPerTick);
const ROUND_TIMEOUT_MS = 120_000;

export interface Load {
  readonly events: number;
  readonly payloadBytes: number;
  readonly eventsPerTick: number;
}

export interface Sample {
  readonly eventsPerSecond: number;
  /** In one process both are the sum. */
  readonly publisherMicrosPerEvent: number;
  readonly subscriberMicrosPerEvent: number;
}

/** Counts events; `onProgress` may let the publisher go on. */
class CountingListener implements EventListener {
  received = 0;
  lost = 0;
  ready: () => void = () => {};
  onProgress: (received: number) => void = () => {};

  onReset(_origin: unknown, reason: string): void {
    if (reason === "lost") this.lost++;
    this.ready();
  }

  onEvents(_origin: unknown, _first: number, payloads: readonly Uint8Array[]): void {
    this.received += payloads.length;
    this.onProgress(this.received);
  }

  onGone(): void {}
}

/** Publisher and subscriber in this process. */
export async function measureMemory(load: Load): Promise<Sample> {
  const { events, payloadBytes, eventsPerTick } = load;
  const window = windowOf(load);
  const bus = new MemoryEventBus();
  const transport = new MemoryEventTransport(bus);
  const publisher = await EventPublisher.open(transport, originOf("bench"), { heartbeatMs: 20 });
  const listener = new CountingListener();
  const subscription = subscribe(transport, listener);
  const isReady = new Promise<void>((resolve) => {
    listener.ready = resolve;
  });
  subscription.upsert({ origin: publisher.origin, address: publisher.address, replayAddress: "memory://none" });
  const deadline = setTimeout(() => {
    throw new Error("the round takes too long");
  }, ROUND_TIMEOUT_MS); // it also keeps the process alive until the first heartbeat
  await isReady;
  const payload = new Uint8Array(payloadBytes).fill(7);
  const cpu = process.cpuUsage();
  const start = performance.now();
  for (let sent = 0; sent < events; ) {
    for (let i = 0; i < eventsPerTick && sent < events; i++, sent++) publisher.publish(payload);
    do await new Promise((resolve) => setImmediate(resolve));
    while (sent - listener.received > window);
  }
  while (listener.received < events) await new Promise((resolve) => setImmediate(resolve));
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  assertComplete(listener, subscription, events);
  clearTimeout(deadline);
  subscription.close();
  await publisher.close();
  const micros = (user + system) / events;
  return {
    eventsPerSecond: events / seconds,
    publisherMicrosPerEvent: micros,
    subscriberMicrosPerEvent: micros,
  };
}

/** The publisher in a process of its own, the subscriber here. */
export async function measureProcesses(mode: Mode, load: Load): Promise<Sample> {
  const plan: PublisherPlan = { mode, ...load };
  const { events } = load;
  const child = fork(fileURLToPath(new URL("./publisher.js", import.meta.url)), [JSON.stringify(plan)]);
  const timer = setTimeout(() => child.kill("SIGKILL"), ROUND_TIMEOUT_MS);
  try {
    const { address } = await nextMessage(child);
    const result = await (mode === "stator" ? receiveStator : receiveRaw)(child, address!, plan);
    return {
      eventsPerSecond: events / result.seconds,
      publisherMicrosPerEvent: result.publisherCpuMicros / events,
      subscriberMicrosPerEvent: result.subscriberCpuMicros / events,
    };
  } finally {
    clearTimeout(timer);
    if (child.connected) child.disconnect();
  }
}

interface Received {
  readonly seconds: number;
  readonly publisherCpuMicros: number;
  readonly subscriberCpuMicros: number;
}

async function receiveStator(child: ChildProcess, address: string, plan: PublisherPlan): Promise<Received> {
  const transport = await ZmqEventTransport.open();
  const listener = new CountingListener();
  const subscription = subscribe(transport, listener);
  const isReady = new Promise<void>((resolve) => {
    listener.ready = resolve;
  });
  subscription.upsert({ origin: originOf("bench"), address, replayAddress: "memory://none" });
  await isReady;
  const result = await meter(child, plan, (onProgress) => {
    listener.onProgress = onProgress;
  });
  assertComplete(listener, subscription, plan.events);
  subscription.close();
  await transport.close();
  return result;
}

async function receiveRaw(child: ChildProcess, address: string, plan: PublisherPlan): Promise<Received> {
  const socket = new Subscriber({ linger: 0, receiveHighWaterMark: 0 });
  socket.subscribe();
  socket.connect(address);
  await socket.receive(); // a hello
  const result = await meter(child, plan, (onProgress) => {
    let received = 0;
    void (async () => {
      for await (const [message] of socket) {
        if (message!.length === 0) continue;
        received += plan.mode === "raw" ? 1 : message!.length / plan.payloadBytes;
        onProgress(received);
      }
    })();
  });
  socket.close();
  return result;
}

/** From the first permission to the last event. */
async function meter(
  child: ChildProcess,
  load: Load,
  listen: (onProgress: (received: number) => void) => void,
): Promise<Received> {
  const { events } = load;
  const window = windowOf(load);
  let allowed = window;
  const cpu = process.cpuUsage();
  const start = performance.now();
  const publisherDone = nextMessage(child);
  const allReceived = new Promise<void>((resolve) => {
    listen((received) => {
      if (received >= events) resolve();
      else if (allowed - received < window / 2) {
        allowed = received + window;
        child.send({ limit: allowed });
      }
    });
  });
  child.send({ limit: allowed });
  const [{ cpuMicros }] = await Promise.all([publisherDone, allReceived]);
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return { seconds, publisherCpuMicros: cpuMicros!, subscriberCpuMicros: user + system };
}

function subscribe(transport: MemoryEventTransport | ZmqEventTransport, listener: EventListener): EventSubscription {
  const client = new MemoryRequestPlaneClient({ network: new MemoryNetwork() });
  return new EventSubscription({ transport, listener, replaySource: new RequestPlaneReplay(client) });
}

function assertComplete(listener: CountingListener, subscription: EventSubscription, events: number): void {
  const { gaps, overflowFrames } = subscription.stats();
  if (listener.received !== events || listener.lost + gaps + overflowFrames > 0) {
    throw new Error(`not a clean round: ${JSON.stringify(subscription.stats())}`);
  }
}

function nextMessage(child: ChildProcess): Promise<FromPublisher> {
  return new Promise((resolve, reject) => {
    const onExit = (code: number | null): void => reject(new Error(`the publisher ended with ${code}`));
    child.once("exit", onExit);
    child.once("message", (message: FromPublisher) => {
      child.off("exit", onExit);
      resolve(message);
    });
  });
}

import { setMaxListeners } from "node:events";
import { Client, credentials } from "@grpc/grpc-js";
import { connect as connectNats } from "@nats-io/transport-node";
import { callUnary, NatsRequestPlaneClient, type RequestPlaneClient, TcpRequestPlaneClient } from "stator/runtime";
import {
  grpcEcho,
  grpcStream,
  type Order,
  type PeerSettings,
  type StreamPlan,
  type StreamsResult,
  type UnaryResult,
} from "./plan.js";

/*
 * The caller, in a process of its own, over one connection. Argument: PeerSettings as JSON. Does the orders that come as
 * messages, one at a time, and sends back what it measured.
 */

interface Caller {
  unary(body: Buffer): Promise<unknown>;
  /** Resolves at the end of the stream. `onMessage` runs once per message. */
  stream(body: Buffer, onMessage: () => void): Promise<void>;
}

const TIMEOUT_MS = 120_000;
const settings = JSON.parse(process.argv[2]!) as PeerSettings;
const caller = await makeCaller();

process.on("disconnect", () => process.exit());
process.on("message", (order: Order) => {
  obey(order).then(
    (result) => process.send!(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send!("ready");

async function obey(order: Order): Promise<unknown> {
  switch (order.what) {
    case "usage":
      return process.cpuUsage();
    case "unary":
      return unary(order.concurrency, order.durationMs);
    case "streams":
      return streams(order.streams, order.plan);
  }
}

async function unary(concurrency: number, durationMs: number): Promise<UnaryResult> {
  const body = Buffer.alloc(64, 1);
  const latenciesMs: number[] = [];
  const startedAt = performance.now();
  const loop = async (): Promise<void> => {
    for (let before = startedAt; before < startedAt + durationMs; ) {
      await caller.unary(body);
      const after = performance.now();
      latenciesMs.push(after - before);
      before = after;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, loop));
  return { seconds: (performance.now() - startedAt) / 1000, latenciesMs };
}

async function streams(count: number, plan: StreamPlan): Promise<StreamsResult> {
  const body = Buffer.from(JSON.stringify(plan));
  let messages = 0;
  const onMessage = (): void => {
    messages++;
  };
  const startedAt = performance.now();
  await Promise.all(Array.from({ length: count }, () => caller.stream(body, onMessage)));
  return { seconds: (performance.now() - startedAt) / 1000, messages };
}

async function makeCaller(): Promise<Caller> {
  const { kind, natsUrl, ca, address } = settings;
  switch (kind) {
    case "tcp":
      return planeCaller(new TcpRequestPlaneClient());
    case "tcp+tls":
      return planeCaller(new TcpRequestPlaneClient({ tls: { ca }, sharedSecret: "the benchmark's secret" }));
    case "nats":
      return planeCaller(new NatsRequestPlaneClient({ nats: { servers: natsUrl } }));
    case "grpc":
      return grpcCaller();
    case "nats-request": {
      const nats = await connectNats({ servers: natsUrl });
      return {
        unary: (body) => nats.request(address, body, { timeout: TIMEOUT_MS }),
        stream: () => Promise.reject(new Error("NATS has requests only")),
      };
    }
  }
}

function planeCaller(plane: RequestPlaneClient): Caller {
  const { address } = settings;
  const callTo = (endpoint: string, body: Buffer) => ({ endpoint, requestId: "bench", body, timeoutMs: TIMEOUT_MS });
  const { signal } = new AbortController();
  setMaxListeners(0, signal); // one for each call under way
  return {
    unary: (body) => callUnary(plane, address, callTo("echo", body), signal),
    stream: (body, onMessage) =>
      new Promise((resolve, reject) => {
        const stream = plane.open(address, callTo("stream", body), {
          onAccept() {},
          onData(message) {
            onMessage();
            stream.consumed(message.length);
          },
          onEnd: resolve,
          onError: reject,
        });
      }),
  };
}

function grpcCaller(): Caller {
  const client = new Client(settings.address, credentials.createInsecure());
  return {
    unary: (body) =>
      new Promise((resolve, reject) => {
        const { path, requestSerialize, responseDeserialize } = grpcEcho;
        client.makeUnaryRequest(path, requestSerialize, responseDeserialize, body, (error, answer) =>
          error ? reject(error) : resolve(answer),
        );
      }),
    stream: (body, onMessage) =>
      new Promise((resolve, reject) => {
        const { path, requestSerialize, responseDeserialize } = grpcStream;
        const call = client.makeServerStreamRequest(path, requestSerialize, responseDeserialize, body);
        call.on("data", onMessage);
        call.on("error", reject);
        call.on("end", resolve);
      }),
  };
}

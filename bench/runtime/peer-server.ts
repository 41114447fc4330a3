import type { sendUnaryData } from "@grpc/grpc-js";
import { Server, ServerCredentials, type ServerUnaryCall, type ServerWritableStream } from "@grpc/grpc-js";
import { connect as connectNats } from "@nats-io/transport-node";
import { NatsRequestPlaneServer, type RequestPlaneServer, TcpRequestPlaneServer } from "stator/runtime";
import { grpcEcho, grpcStream, type Order, type PeerSettings, type StreamPlan } from "./plan.js";
import { Stepper } from "./stepper.js";

/*
 * The server under test, in a process of its own. Argument: PeerSettings as JSON. Sends its address when it listens, and
 * its CPU time when asked.
 */

const settings = JSON.parse(process.argv[2]!) as PeerSettings;
const stepper = new Stepper();

process.on("message", (order: Order) => {
  if (order.what === "usage") process.send!(process.cpuUsage());
});
process.on("disconnect", () => process.exit());
process.send!(await listen());

async function listen(): Promise<string> {
  const { kind, natsUrl, cert, key } = settings;
  switch (kind) {
    case "tcp":
      return serve(new TcpRequestPlaneServer());
    case "tcp+tls":
      return serve(new TcpRequestPlaneServer({ tls: { cert, key }, sharedSecret: "the benchmark's secret" }));
    case "nats":
      return serve(new NatsRequestPlaneServer({ nats: { servers: natsUrl } }));
    case "grpc":
      return serveGrpc();
    case "nats-request":
      return serveNatsRequests(natsUrl);
  }
}

async function serve(server: RequestPlaneServer): Promise<string> {
  server.handle("echo", async (call) => {
    call.send(call.body);
  });
  server.handle("stream", (call) => {
    call.accept(0);
    const plan = JSON.parse(Buffer.from(call.body).toString()) as StreamPlan;
    return new Promise((resolve) => {
      const unblock = stepper.add(
        {
          write: (message) => {
            if (call.send(message)) return true;
            call.ready().then(unblock, () => {});
            return false;
          },
          end: resolve,
        },
        plan,
      );
    });
  });
  await server.listen();
  return server.address;
}

async function serveGrpc(): Promise<string> {
  const server = new Server();
  server.addService(
    { echo: grpcEcho, stream: grpcStream },
    {
      echo: (call: ServerUnaryCall<Buffer, Buffer>, answer: sendUnaryData<Buffer>) => answer(null, call.request),
      stream: (call: ServerWritableStream<Buffer, Buffer>) => {
        const plan = JSON.parse(call.request.toString()) as StreamPlan;
        const unblock = stepper.add({ write: (message) => call.write(message), end: () => call.end() }, plan);
        call.on("drain", unblock);
      },
    },
  );
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  return `127.0.0.1:${port}`;
}

async function serveNatsRequests(servers: string): Promise<string> {
  const nats = await connectNats({ servers });
  nats.subscribe("bench.echo", { callback: (_error, message) => void message.respond(message.data) });
  await nats.flush();
  return "bench.echo";
}

// A worker process that only publishes events, driven by messages of its parent:
//   node event-worker.mjs '{"folder","workerId","epoch","nats"?}'   ->  "ready"
//   <- { publish: n }   n events, `0`, `1`, ... in one tick   ->  { published }
import {
  EventPublisher,
  FileDiscovery,
  NatsEventTransport,
  ReplayService,
  TcpRequestPlaneServer,
  ZmqEventTransport,
} from "../../dist/runtime/index.js";

const { folder, workerId, epoch, nats } = JSON.parse(process.argv[2]);
const topic = "kv-events";
const place = { namespace: "ns", component: "worker", workerId, epoch };
const transport = await (nats ? NatsEventTransport.open({ servers: nats }) : ZmqEventTransport.open());
const publisher = await EventPublisher.open(transport, { ...place, topic }, { heartbeatMs: 100 });
const server = new TcpRequestPlaneServer();
new ReplayService(server).offer(publisher);
await server.listen();
await new FileDiscovery({ folder }).register({
  ...place,
  address: server.address,
  endpoints: [],
  events: [{ topic, address: publisher.address }],
  pid: process.pid,
  startedAtMs: Date.now(),
});
let published = 0;
process.on("message", ({ publish }) => {
  for (let i = 0; i < publish; i++) publisher.publish(Buffer.from(`${published++}`));
  process.send({ published });
});
process.once("disconnect", () => process.exit());
process.send("ready");

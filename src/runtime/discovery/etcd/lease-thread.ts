import { parentPort, workerData } from "node:worker_threads";
import { EtcdClient, type EtcdClientOptions } from "./etcd-client.ts";
import { LeaseLoop } from "./lease-loop.ts";

/*
 * The thread behind LeaseKeeper: nothing that the process does can starve the keep-alive here.
 * Messages out: LeaseNews. In: "stop" = revoke the lease and end.
 */
const { client, ttlSeconds } = workerData as { client: EtcdClientOptions; ttlSeconds: number };
const port = parentPort!;
const loop = new LeaseLoop(new EtcdClient(client), ttlSeconds, (news) => port.postMessage(news));
port.once("message", () => {
  void loop.stop().finally(() => port.close());
});
void loop.run();

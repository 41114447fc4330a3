import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { EtcdClient, type EtcdClientOptions, type WatchEvent } from "./etcd-client.ts";

const servers: Server[] = [];
const clients: EtcdClient[] = [];
afterEach(async () => {
  for (const client of clients.splice(0)) await client.close();
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

type Answer = (path: string, body: string, response: ServerResponse, request: IncomingMessage) => void;

/** Something that answers like etcd's gateway. */
async function fakeEtcd(answer: Answer): Promise<string> {
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data: Buffer) => {
      body += data.toString();
    });
    request.on("end", () => answer(request.url ?? "", body, response, request));
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function connect(...options: [EtcdClientOptions]): EtcdClient {
  const client = new EtcdClient(...options);
  clients.push(client);
  return client;
}

const signal = new AbortController().signal;
test.each(["{}", "null", "<html>"])("a server that answers %s is no etcd", async (answer) => {
  const client = connect({ endpoints: [await fakeEtcd((_path, _body, response) => response.end(answer))] });
  for (const ask of [client.range("p", signal), client.get("k", signal), client.grantLease(5, signal)]) {
    await expect(ask).rejects.toMatchObject({ code: "discovery_unavailable" });
  }
});

const empty = '{"header":{"revision":"1"}}';
const event = (revision: number): object => ({ kv: { key: btoa("k"), value: btoa("v"), mod_revision: `${revision}` } });

test.each([1, 2, 3, 4])("%i calls that fail together at a dead endpoint go to the living one next", async (count) => {
  const dead = await fakeEtcd((_path, _body, response) => response.destroy());
  const client = connect({ endpoints: [dead, await fakeEtcd((_path, _body, response) => response.end(empty))] });
  const ask = () => Promise.allSettled(Array.from({ length: count }, () => client.get("k", signal)));
  expect((await ask()).map(({ status }) => status)).toEqual(Array(count).fill("rejected"));
  expect((await ask()).map(({ status }) => status)).toEqual(Array(count).fill("fulfilled"));
});

test("a silent endpoint is called so", async () => {
  const client = connect({ endpoints: [await fakeEtcd(() => {})], requestTimeoutMs: 50 });
  await expect(client.get("k", signal)).rejects.toThrow("no answer in time");
});

test("a keep-alive that gets an error does not mean that the lease is gone", async () => {
  const url = await fakeEtcd((_path, _body, response) => response.end('{"error":{"message":"no leader"}}\n'));
  await expect(connect({ endpoints: [url] }).keepLeaseAlive("1", signal)).rejects.toMatchObject({
    code: "discovery_unavailable",
  });
});

test("a watch has told up to its last event, not up to the newest revision of the store, wherever the text is cut", async () => {
  const lines = [
    { result: { header: { revision: "90" }, created: true } },
    { result: { header: { revision: "90" }, events: [event(4), event(5)] } },
    { result: { header: { revision: "91" } } },
    { result: { header: { revision: "91" }, events: [event(9)] } },
  ];
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  for (const size of [1, 7, 64, text.length]) {
    const url = await fakeEtcd((_path, _body, response) => {
      response.socket!.setNoDelay(true);
      for (let at = 0; at < text.length; at += size) response.write(text.slice(at, at + size));
      response.end();
    });
    const told: [WatchEvent[], bigint][] = [];
    const watch = connect({ endpoints: [url] }).watch("p", 4n, (events, to) => told.push([[...events], to]), signal);
    await expect(watch).rejects.toThrow("the watch ended");
    expect(told.map(([events, to]) => [events.length, to])).toEqual([
      [2, 5n],
      [1, 9n],
    ]);
  }
});

test.each(["invalid auth token", "revision of auth store is old"])("%s: it logs in again", async (problem) => {
  let logins = 0;
  const url = await fakeEtcd((path, _body, response, request) => {
    if (path === "/v3/auth/authenticate") response.end(JSON.stringify({ token: `token-${++logins}` }));
    else if (request.headers.authorization === "token-2") response.end(empty);
    else response.writeHead(401).end(JSON.stringify({ error: `etcdserver: ${problem}` }));
  });
  const client = connect({ endpoints: [url], username: "u", password: "p" });
  await client.get("k", signal);
  expect(logins).toBe(2);
});

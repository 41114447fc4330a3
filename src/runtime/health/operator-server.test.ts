import { request as httpRequest } from "node:http";
import { afterEach, expect, test } from "vitest";
import { OperatorServer, type OperatorServerOptions } from "./operator-server.ts";

const servers: OperatorServer[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

async function open(options: Partial<OperatorServerOptions> = {}): Promise<number> {
  const server = new OperatorServer({ host: "127.0.0.1", port: 0, name: "test port", ...options }, (path) => {
    if (path === "/open") return [{ method: "GET", open: true, handle: () => ({ status: 200, body: "text" }) }];
    if (path === "/closed") {
      return [
        { method: "GET", handle: () => ({ status: 200, body: { got: "get" } }) },
        { method: "POST", handle: ({ body }) => ({ status: 200, body: { got: body ?? null } }) },
      ];
    }
    if (path === "/broken") return [{ method: "GET", handle: () => Promise.reject(new Error("secret")) }];
    return [];
  });
  servers.push(server);
  return server.listen();
}

function ask(
  port: number,
  path: string,
  options: { method?: string; headers?: Record<string, string>; body?: string } = {},
): Promise<{ status: number; headers: Record<string, unknown>; body: string }> {
  return new Promise((resolve, reject) => {
    const request = httpRequest({ port, path, host: "127.0.0.1", agent: false, ...options }, (response) => {
      let body = "";
      response.setEncoding("utf8").on("data", (part: string) => {
        body += part;
      });
      response.once("end", () => resolve({ status: response.statusCode!, headers: response.headers, body }));
    });
    request.once("error", reject);
    request.end(options.body);
  });
}

test("pages, methods, unknown paths, and what a page throws", async () => {
  const port = await open();
  expect(await ask(port, "/open")).toMatchObject({ status: 200, body: "text" });
  expect((await ask(port, "/closed?x=1")).body).toBe('{"got":"get"}');
  expect((await ask(port, "/closed", { method: "HEAD" })).status).toBe(200);
  expect((await ask(port, "/closed", { method: "POST" })).body).toBe('{"got":null}');
  const json = { "content-type": "application/json" };
  expect((await ask(port, "/closed", { method: "POST", headers: json, body: '{"a":1}' })).body).toBe('{"got":{"a":1}}');
  expect((await ask(port, "/closed", { method: "POST", headers: json, body: "{" })).status).toBe(400);
  expect((await ask(port, "/closed", { method: "POST", headers: json, body: "x".repeat(2_000_000) })).status).toBe(413);
  expect(await ask(port, "/closed", { method: "PUT" })).toMatchObject({
    status: 405,
    headers: { allow: "GET, POST, HEAD" },
  });
  expect((await ask(port, "/nothing")).status).toBe(404);
  const broken = await ask(port, "/broken");
  expect(broken.status).toBe(500);
  expect(broken.body).not.toContain("secret");
});

test("a browser's other pages have no way in", async () => {
  const port = await open();
  expect((await ask(port, "/closed", { headers: { host: "evil.example" } })).status).toBe(400);
  const form = { "content-type": "application/x-www-form-urlencoded", origin: "http://evil.example" };
  expect((await ask(port, "/closed", { method: "POST", headers: form, body: "a=1" })).status).toBe(415);
  const empty = { origin: "http://evil.example" };
  expect((await ask(port, "/closed", { method: "POST", headers: empty })).status).toBe(415);
});

test("a token guards what is not open; beyond loopback there is nothing else without one", async () => {
  const guarded = await open({ token: "s3cret" });
  expect((await ask(guarded, "/open")).status).toBe(200);
  expect((await ask(guarded, "/closed")).status).toBe(403);
  expect((await ask(guarded, "/closed", { headers: { authorization: "Bearer s3cre" } })).status).toBe(403);
  expect((await ask(guarded, "/closed", { headers: { authorization: "Bearer s3cret" } })).status).toBe(200);
  const wide = await open({ host: "0.0.0.0" });
  expect((await ask(wide, "/open", { headers: { host: "node-7:9000" } })).status).toBe(200);
  expect((await ask(wide, "/closed")).status).toBe(403);
});

test("a page of another site cannot make a browser do anything", async () => {
  const port = await open();
  for (const site of ["cross-site", "same-site"]) {
    expect((await ask(port, "/closed", { headers: { "sec-fetch-site": site } })).status).toBe(403);
    expect((await ask(port, "/open", { headers: { "sec-fetch-site": site } })).status).toBe(200);
  }
  for (const site of ["same-origin", "none"]) {
    expect((await ask(port, "/closed", { headers: { "sec-fetch-site": site } })).status).toBe(200);
  }
});

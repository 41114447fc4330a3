import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { StatorProcess, temporaryFolder, until } from "../harness/stator-process.ts";

/* A signal that comes before anything is ready. */

let hub: Server;
let asked = 0;
beforeAll(async () => {
  hub = createServer(() => void asked++); // and never answers: a download that takes for ever
  await new Promise<void>((resolve) => hub.listen(0, "127.0.0.1", resolve));
});
afterAll(async () => {
  hub.closeAllConnections();
  await new Promise((resolve) => hub.close(resolve));
});

test.each(["serve", "worker"])("stator %s ends at once on SIGTERM while its model is downloaded", async (command) => {
  const { port } = hub.address() as AddressInfo;
  const before = asked;
  const stator = new StatorProcess([
    ...[command, "--model", "hf:some/model/model.gguf", "--discovery", `file:${temporaryFolder()}`],
    ...["--set", `huggingface.endpoint=http://127.0.0.1:${port}`, "--set", `huggingface.cache=${temporaryFolder()}`],
  ]);
  await until(
    () => asked > before,
    20_000,
    () => stator.describe(),
  );
  stator.signal("SIGTERM");
  expect(await stator.exited(5_000)).toEqual({ code: null, signal: "SIGTERM" });
});

test("stator worker ends in order on SIGTERM while it waits for etcd", async () => {
  const { port } = hub.address() as AddressInfo;
  const before = asked;
  const stator = new StatorProcess(["worker", "--engine", "echo", "--discovery", `etcd://127.0.0.1:${port}`]);
  await until(
    () => asked > before,
    20_000,
    () => stator.describe(),
  );
  stator.signal("SIGTERM");
  expect(await stator.exited(10_000)).toEqual({ code: 0, signal: null });
});

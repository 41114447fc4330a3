import { afterEach, expect, it } from "vitest";
import { cpuMs, ManyWorkers, residentKib } from "../harness/many-workers.ts";
import { startEtcd, startNats } from "../harness/real-servers.ts";
import { temporaryFolder } from "../harness/stator-process.ts";

const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

it("2,000 workers in a process, over files and TCP: small, and idle when nobody asks", async () => {
  const alone = await ManyWorkers.start({ count: 2, discovery: `file:${temporaryFolder()}/d` });
  started.push(alone);
  const many = await ManyWorkers.start({ count: 2_000, discovery: `file:${temporaryFolder()}/d` });
  started.push(many);
  const kibEach = (residentKib(many.worker) - residentKib(alone.worker)) / 1_998;
  expect(kibEach).toBeLessThan(200);
  await many.expectStreams(200);
  const before = { worker: cpuMs(many.worker), frontend: cpuMs(many.frontend) };
  const beganAtMs = performance.now();
  await new Promise((resolve) => setTimeout(resolve, 10_000)); // what is measured is how little happens
  const part = (process: "worker" | "frontend") =>
    (cpuMs(many[process]) - before[process]) / (performance.now() - beganAtMs);
  expect(part("worker")).toBeLessThan(0.25);
  expect(part("frontend")).toBeLessThan(0.25);
  await many.frontendSees(2_000);
  await many.expectEnd();
}, 300_000);

it("500 workers in a process over etcd and NATS", async () => {
  const [etcd, nats] = [await startEtcd(), await startNats()];
  started.push(etcd, nats);
  const args = ["--request-plane", nats.url];
  const many = await ManyWorkers.start({ count: 500, discovery: etcd.url.replace("http", "etcd"), args });
  started.push(many);
  await many.expectStreams(200);
  await many.expectEnd();
}, 300_000);

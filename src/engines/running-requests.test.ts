import { getEventListeners } from "node:events";
import { expect, test } from "vitest";
import { RunningRequests } from "./running-requests.ts";

test("a drain refuses what comes and waits for what runs, and leaves no listener", async () => {
  const running = new RunningRequests<string>();
  running.add("a");
  running.add("b");
  const { signal } = new AbortController();
  let over = false;
  const draining = Promise.all([running.drain(signal), running.drain(signal)]).then(() => {
    over = true;
  });
  expect(running.health).toEqual({ state: "draining" });
  expect(() => running.add("c")).toThrow("takes no new requests");
  running.remove("a");
  running.remove("a");
  await new Promise((resolve) => setImmediate(resolve));
  expect(over).toBe(false);
  running.remove("b");
  await draining;
  expect(getEventListeners(signal, "abort")).toEqual([]);
  await running.drain(signal); // nothing runs
});

test("a drain ends with its signal, though something runs", async () => {
  const running = new RunningRequests<string>();
  running.add("a");
  const stop = new AbortController();
  const draining = running.drain(stop.signal);
  stop.abort();
  await draining;
  await running.drain(stop.signal);
  expect([...running]).toEqual(["a"]);
});

test("closed: gives what runs, refuses for good, and a drain does not reopen it", async () => {
  const running = new RunningRequests<string>();
  running.add("a");
  expect(running.close()).toEqual(["a"]);
  running.remove("a");
  await running.drain(new AbortController().signal);
  expect(running.health).toEqual({ state: "unhealthy", reason: "closed" });
  expect(() => running.assertAccepting()).toThrow("takes no new requests");
});

import { expect, test } from "vitest";
import { StatorError } from "../../protocol/index.ts";
import { DeltaQueue } from "./delta-queue.ts";
import { NativeStepWatch } from "./native-step-watch.ts";

const finish = { reason: "stop", usage: { promptTokens: 1, completionTokens: 2, cachedTokens: 0 } } as const;

test("tokens that are ready together leave together, with the finish", async () => {
  const queue = new DeltaQueue();
  queue.push(1, undefined);
  queue.push(2, undefined);
  queue.end(finish);
  expect(await queue.pull()).toEqual({ tokens: Uint32Array.of(1, 2), finish });
});

test("a waiting consumer gets the next token at once", async () => {
  const queue = new DeltaQueue();
  const pulled = queue.pull();
  queue.push(7, { logprob: -1, top: [] });
  expect(await pulled).toEqual({ tokens: Uint32Array.of(7), logprobs: [{ logprob: -1, top: [] }] });
});

test("a sign of life is an empty delta for a waiting consumer, and nothing for others", async () => {
  const queue = new DeltaQueue();
  const pulled = queue.pull();
  queue.alive();
  expect(await pulled).toEqual({ tokens: new Uint32Array(0) });
  queue.alive();
  queue.push(7, undefined);
  expect(await queue.pull()).toEqual({ tokens: Uint32Array.of(7) });
  const next = queue.pull();
  queue.alive();
  queue.push(8, undefined);
  expect(await next).toEqual({ tokens: Uint32Array.of(8) });
});

test("an error comes after the tokens before it", async () => {
  const queue = new DeltaQueue();
  queue.push(1, undefined);
  queue.fail(new StatorError("engine_error", "broken"));
  expect((await queue.pull()).tokens).toEqual(Uint32Array.of(1));
  await expect(queue.pull()).rejects.toThrow("broken");
});

test("a full queue holds the producer until the consumer pulls or the request is stopped", async () => {
  const queue = new DeltaQueue();
  await queue.room();
  while (!queue.isFull) queue.push(1, undefined);
  let state = "waiting";
  const first = queue.room().then(() => (state = "pulled"));
  await Promise.resolve();
  expect(state).toBe("waiting");
  await queue.pull();
  await first;
  while (!queue.isFull) queue.push(1, undefined);
  const second = queue.room();
  queue.releaseProducer();
  await second;
});

test("a watch tells how long steps have been without progress", async () => {
  let now = 0;
  const watch = new NativeStepWatch(() => now);
  expect(watch.stalledMs).toBe(0);
  let end: () => void = () => undefined;
  const hung = watch.step(new Promise<void>((resolve) => (end = resolve)));
  now = 700;
  expect(watch.stalledMs).toBe(700);
  await watch.step(Promise.resolve());
  expect(watch.stalledMs).toBe(0);
  now = 1000;
  expect(watch.stalledMs).toBe(300);
  end();
  await hung;
  expect(watch.stalledMs).toBe(0);
  const long = watch.step(new Promise<void>((resolve) => (end = resolve)), 5000);
  now = 5500;
  expect(watch.stalledMs).toBe(0);
  now = 6300;
  expect(watch.stalledMs).toBe(300);
  end();
  await long;
  await expect(watch.step(Promise.reject(new Error("native")))).rejects.toThrow("native");
  expect(watch.stalledMs).toBe(0);
});

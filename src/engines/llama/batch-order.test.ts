import { expect, test } from "vitest";
import { BatchOrder, batchPlace, prefillChunk } from "./batch-order.ts";
import { asTokens } from "./native.ts";

const waits = (sequence: number, tokens: number) => ({
  tokens: asTokens(Array.from({ length: tokens }, () => 1)),
  evaluationPriority: batchPlace(sequence),
  logits: [],
});
type Waiting = ReturnType<typeof waits>;

function nextBatch(order: BatchOrder, items: Waiting[]): string[] {
  return order
    .strategy({ items, size: 512 })
    .map(({ item, processAmount }) => `${item.evaluationPriority - 1}:${processAmount}`);
}

test("a chunk goes alone and in turn with the tokens of all others, which are in the order of their sequences", () => {
  const order = new BatchOrder();
  const items = [waits(2, 1), waits(3, 16), waits(0, 1)];
  expect([nextBatch(order, items), nextBatch(order, items), nextBatch(order, items)]).toEqual([
    ["3:16"],
    ["0:1", "2:1"],
    ["3:16"],
  ]);
});

test("the chunk of an aborted request comes before everything else, until it has ended", () => {
  const order = new BatchOrder();
  const items = [waits(0, 16), waits(1, 1), waits(2, 16), waits(3, 16)];
  expect(nextBatch(order, items)).toEqual(["0:16"]);
  order.hurry(3);
  expect(nextBatch(order, items)).toEqual(["3:16"]);
  order.settle(3);
  expect(nextBatch(order, items)).toEqual(["1:1"]);
  expect(nextBatch(order, items)).toEqual(["0:16"]);
});

test("chunks take a fraction of a second", () => {
  const chunk = (parameters: number): number => prefillChunk({ parameters, batchSize: 512, usesGpu: false });
  expect([1e6, 135e6, 1e9, 70e9].map(chunk)).toEqual([512, 16, 16, 16]);
  expect(prefillChunk({ parameters: 70e9, batchSize: 512, usesGpu: true })).toBe(512);
});

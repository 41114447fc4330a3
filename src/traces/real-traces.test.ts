import { createReadStream, existsSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { seededRandom } from "../protocol/random.ts";
import { parseAzure } from "./azure.ts";
import { parseMooncake } from "./mooncake.ts";
import { PrefixTree } from "./prefix-tree.ts";
import type { TraceRequest } from "./trace-request.ts";

const folder = process.env.STATOR_TRACES;
const mooncakePath = folder === undefined ? "" : join(folder, "mooncake_conversation.jsonl");
const azurePath = folder === undefined ? "" : join(folder, "azure_llm_2023_conv.csv");
const why = "skipped: set STATOR_TRACES to the folder with the published trace (Mooncake FAST '25, AzurePublicDataset)";

async function all(requests: AsyncIterable<TraceRequest>): Promise<TraceRequest[]> {
  const list: TraceRequest[] = [];
  for await (const request of requests) list.push(request);
  return list;
}

const sum = (numbers: readonly number[]) => numbers.reduce((total, number) => total + number, 0);

describe("the real traces", () => {
  it("Mooncake's conversation trace is read completely, and its prefix tree makes workloads like it", async (context) => {
    if (!existsSync(mooncakePath)) return context.skip(why);
    const requests = await all(parseMooncake(createReadStream(mooncakePath, "utf8")));
    expect(requests.length).toBe(12_031);
    expect(sum(requests.map((request) => request.outputTokens))).toBe(4_122_048);
    expect(Math.floor((requests.at(-1)?.arrivalMs ?? 0) / 1000)).toBe(3536);

    const tree = new PrefixTree(requests);
    const made = [...tree.synthesize({ requests: 12_031 }, seededRandom(1))];
    const mean = (list: readonly TraceRequest[], length: (request: TraceRequest) => number) =>
      sum(list.map(length)) / list.length;
    const lengths = [(r: TraceRequest) => r.inputTokens, (r: TraceRequest) => r.outputTokens];
    for (const length of lengths) expect(mean(made, length) / mean(requests, length)).toBeCloseTo(1, 1);
    expect(made.at(-1)?.arrivalMs).toBeGreaterThan(0.9 * 3536_000);
    expect(made.at(-1)?.arrivalMs).toBeLessThan(1.1 * 3536_000);
    expect(Math.abs(infiniteHitRate(made) - infiniteHitRate(requests))).toBeLessThan(0.03);
  });

  it("Azure's 2023 conversation trace is read completely", async (context) => {
    if (!existsSync(azurePath)) return context.skip(why);
    const requests = await all(parseAzure(createReadStream(azurePath, "utf8")));
    expect(requests.length).toBe(19_366);
    expect(Math.round(sum(requests.map((request) => request.inputTokens)) / requests.length)).toBe(1155);
    expect(Math.round(sum(requests.map((request) => request.outputTokens)) / requests.length)).toBe(211);
  });
});

/** The share of blocks that an endless cache would have. */
function infiniteHitRate(requests: readonly TraceRequest[]): number {
  const seen = new Set<number>();
  let hits = 0;
  for (const { blockIds } of requests) {
    for (const id of blockIds) {
      if (seen.has(id)) hits += 1;
      seen.add(id);
    }
  }
  return hits / sum(requests.map((request) => request.blockIds.length));
}

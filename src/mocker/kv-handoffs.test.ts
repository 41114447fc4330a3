import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { DisaggregatedEngine } from "./engine.ts";
import { type Handoff, KvHandoffs } from "./kv-handoffs.ts";
import { Links } from "./links.ts";
import { createSimulatedEngine } from "./timed-engine.ts";
import { fixedTiming } from "./timing/fixed.ts";

// Blocks of 4 tokens, 100 bytes of KV each token. A prefill takes 10 ms, a decode 1 ms. Links: 100 bytes a millisecond.
const settings = { blockTokens: 4, timing: fixedTiming(10, 1) };
const prefillEngine = (blocks: number) => createSimulatedEngine({ ...settings, blocks, role: "prefill" }, 0);
const decodeEngine = (flavour: "vllm" | "sglang", blocks: number) =>
  createSimulatedEngine({ ...settings, blocks, role: "decode", flavour }, 0);

/** Two prefill engines and a decode engine: link 0 and 1 leave the former, link 2 enters the latter. */
class Fleet {
  readonly links = new Links([100_000, 100_000, 100_000]);
  readonly handoffs = new KvHandoffs(this.links);
  readonly sources: readonly DisaggregatedEngine[];
  readonly target: DisaggregatedEngine;
  readonly log: string[] = [];
  readonly order: Handoff["order"];

  constructor(order: Handoff["order"], blocks = 100) {
    this.order = order;
    this.sources = [prefillEngine(blocks), prefillEngine(blocks)];
    this.target = decodeEngine(order === "source" ? "vllm" : "sglang", blocks);
  }

  submit(id: number, from: number, inputTokens: number, blockKeys: number[] = [], outputTokens = 3): void {
    const request = { id, inputTokens, outputTokens, blockKeys };
    const source = this.sources[from]!;
    const handoff = { request, source, target: this.target, links: [from, 2], kvBytesPerToken: 100, order: this.order };
    this.handoffs.begin(handoff, 0);
    source.submit({ ...request, holdKv: true }, 0);
  }

  run(): string[] {
    const parts = [...this.sources, this.target, this.handoffs];
    for (let steps = 0; steps < 10_000; steps++) {
      const now = Math.min(...parts.map((part) => part.nextWorkAtMs));
      if (now === Number.POSITIVE_INFINITY) return this.log;
      const part = parts.find((candidate) => candidate.nextWorkAtMs === now)!;
      if (part === this.handoffs) for (const id of this.handoffs.step(now)) this.log.push(`${now} ${id} moved`);
      else this.#step(part as DisaggregatedEngine, now);
    }
    throw new Error("no end");
  }

  #step(engine: DisaggregatedEngine, now: number): void {
    const result = engine.step(now);
    const name = engine === this.target ? "decode" : "prefill";
    for (let at = 0; at < result.tokenRequests; at++) this.log.push(`${now} ${result.tokenIds[at]} ${name}`);
    if (engine === this.target)
      for (const each of result.admitted) this.handoffs.reserved(each.id, each.missingTokens, now);
    else for (const id of result.finished) this.handoffs.prefilled(id, now);
  }

  get activeBlocks(): number {
    return [...this.sources, this.target].reduce((sum, engine) => sum + engine.loads().activeBlocks, 0);
  }
}

describe("KV hand-overs", () => {
  it("source first: prefill, transfer of the whole prompt, then admission for decode", () => {
    const fleet = new Fleet("source");
    fleet.submit(0, 0, 8);
    expect(fleet.run()).toEqual(["10 0 prefill", "18 0 moved", "19 0 decode", "20 0 decode"]);
    expect(fleet.activeBlocks).toBe(0);
  });

  it("target first: reserved at once, and only what is not cached there is moved", () => {
    const fleet = new Fleet("target");
    fleet.target.submit({ id: 9, inputTokens: 5, outputTokens: 1, blockKeys: [1] }, 0);
    while (fleet.target.nextWorkAtMs !== Number.POSITIVE_INFINITY) fleet.target.step(fleet.target.nextWorkAtMs);
    fleet.submit(0, 0, 8, [1, 2]); // block 1, 4 tokens, is there
    expect(fleet.run()).toEqual(["10 0 prefill", "14 0 moved", "15 0 decode", "16 0 decode"]);
    expect(fleet.activeBlocks).toBe(0);
  });

  it("share the link into the decode engine", () => {
    const fleet = new Fleet("source");
    fleet.submit(0, 0, 8);
    fleet.submit(1, 1, 8);
    const moved = fleet.run().filter((entry) => entry.endsWith("moved"));
    expect(moved).toEqual(["26 0 moved", "26 1 moved"]); // 800 bytes each at half the speed
  });

  it("a source keeps its blocks while a link is cut; a cancelled one is forgotten", () => {
    const fleet = new Fleet("source");
    fleet.submit(0, 0, 8);
    fleet.links.setBandwidth(2, 0, 0);
    expect(fleet.run()).toEqual(["10 0 prefill"]);
    expect(fleet.activeBlocks).toBe(2);
    expect(fleet.handoffs.cancel(0, 20)).toBe(true);
    expect(fleet.sources[0]?.cancel(0, 20)).toBe(true);
    expect(fleet.links.active).toBe(0);
    expect(fleet.activeBlocks).toBe(0);
    expect(fleet.handoffs.cancel(0, 20)).toBe(false);
  });

  it("in any mix, small pools included, every request gets its tokens and every block comes back", () => {
    const each = fc.record({
      from: fc.nat(1),
      inputTokens: fc.integer({ min: 1, max: 30 }),
      outputTokens: fc.integer({ min: 2, max: 20 }),
      group: fc.nat(2),
    });
    const orders = fc.constantFrom("source" as const, "target" as const);
    fc.assert(
      fc.property(
        orders,
        fc.integer({ min: 15, max: 40 }),
        fc.array(each, { maxLength: 12 }),
        (order, blocks, list) => {
          const fleet = new Fleet(order, blocks);
          list.forEach(({ from, inputTokens, outputTokens, group }, id) => {
            const keys = Array.from({ length: Math.floor(inputTokens / 4) }, (_, at) => group * 100 + at);
            fleet.submit(id, from, inputTokens, keys, outputTokens);
          });
          const log = fleet.run();
          list.forEach(({ outputTokens }, id) => {
            const of = (kind: string) => log.filter((entry) => entry.endsWith(` ${id} ${kind}`)).length;
            expect([of("prefill"), of("moved"), of("decode")]).toEqual([1, 1, outputTokens - 1]);
          });
          expect(fleet.activeBlocks).toBe(0);
        },
      ),
      { numRuns: 200 },
    );
  });
});

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type AccountedBlock, BlockAccount } from "./block-account.ts";
import { SequencePool } from "./sequence-pool.ts";

const blockSize = 3;
const sequences = 3;

/** Few different tokens, so that sequences share prefixes. */
const command = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ sequence: fc.nat(sequences - 1), tokens: fc.array(fc.nat(1), { maxLength: 8 }) }),
  },
  { weight: 1, arbitrary: fc.record({ sequence: fc.nat(sequences - 1), keep: fc.nat(12) }) },
);

/** The simple reference: the prefixes of whole blocks, spelled out. */
function prefixes(states: readonly (readonly number[])[]): Set<string> {
  const found = new Set<string>();
  for (const tokens of states) {
    for (let end = blockSize; end <= tokens.length; end += blockSize) found.add(tokens.slice(0, end).join(","));
  }
  return found;
}

function prefixOf(block: AccountedBlock): string {
  const own = Array.from(block.tokens).join(",");
  return block.parent === undefined ? own : `${prefixOf(block.parent)},${own}`;
}

test("the account equals a naive one, and its events lead to the same set", () => {
  fc.assert(
    fc.property(fc.array(command, { maxLength: 60 }), (commands) => {
      const heard = new Map<number, AccountedBlock>();
      const seen = new Set<number>();
      const account = new BlockAccount({
        blockSize,
        sequences,
        listener: {
          stored(block) {
            expect(seen.has(block.id), "an id is used once").toBe(false);
            expect(block.parent === undefined || heard.has(block.parent.id), "parents come first").toBe(true);
            seen.add(block.id);
            heard.set(block.id, block);
          },
          removed(block) {
            expect(heard.delete(block.id), "only what was stored is removed").toBe(true);
            expect(
              [...heard.values()].some(({ parent }) => parent === block),
              "children go first",
            ).toBe(false);
          },
        },
      });
      const states: number[][] = Array.from({ length: sequences }, () => []);
      for (const step of commands) {
        if ("tokens" in step) {
          for (const token of step.tokens) account.append(step.sequence, token);
          states[step.sequence]!.push(...step.tokens);
        } else {
          account.truncate(step.sequence, step.keep);
          states[step.sequence] = states[step.sequence]!.slice(0, step.keep);
        }
        const expected = prefixes(states);
        expect(account.usedBlocks).toBe(expected.size);
        expect(new Set([...heard.values()].map(prefixOf))).toEqual(expected);
      }
    }),
    { numRuns: 200 },
  );
});

describe("SequencePool", () => {
  const tokens = (length: number, start = 0): number[] => Array.from({ length }, (_, i) => start + i);
  const pool = (exactChunk?: number) =>
    new SequencePool({ sequences: 2, blockSize: 4, ...(exactChunk === undefined ? {} : { exactChunk }) });
  const use = (target: SequencePool, prompt: number[], generated: number[] = []) => {
    const lease = target.acquire(Uint32Array.from(prompt))!;
    target.truncate(lease.index, lease.reusable);
    target.extend(lease.index, prompt.slice(lease.reusable), "prefill");
    target.extend(lease.index, generated, "decode");
    target.release(lease);
    return lease;
  };

  test("reuses the longest prefix, never the last token of the prompt", () => {
    const target = pool();
    use(target, tokens(10));
    use(target, tokens(10, 100));
    expect(use(target, tokens(10))).toEqual({ index: 0, reusable: 9 });
    expect(use(target, [...tokens(8, 100), 1, 2])).toEqual({ index: 1, reusable: 8 });
    expect(use(target, tokens(4))).toEqual({ index: 0, reusable: 3 });
  });

  test("takes the one unused for longest when nothing matches, and empty ones first", () => {
    const target = pool();
    expect(use(target, tokens(5)).index).toBe(0);
    expect(use(target, tokens(5, 50)).index).toBe(1);
    expect(use(target, tokens(5, 100)).index).toBe(0);
  });

  test("does not throw a long conversation away for a short common beginning", () => {
    const target = pool();
    use(target, tokens(1000));
    expect(use(target, [...tokens(10), ...tokens(90, 5000)])).toEqual({ index: 1, reusable: 0 });
  });

  test("in exact mode, only whole chunks that prefill evaluated are reused", () => {
    const target = pool(4);
    use(target, tokens(10), tokens(6, 10));
    expect(use(target, tokens(16))).toEqual({ index: 0, reusable: 8 });
    expect(use(target, tokens(16)).reusable).toBe(12);
    use(target, tokens(9));
    expect(use(target, tokens(16)).reusable).toBe(8);
  });

  test("refuses when all are busy; a lease ends once", () => {
    const target = pool();
    const [a, b] = [target.acquire(Uint32Array.of(1))!, target.acquire(Uint32Array.of(1))!];
    expect(a.index).not.toBe(b.index);
    expect(target.acquire(Uint32Array.of(1))).toBeUndefined();
    expect(target.acquireIdle()).toBeUndefined();
    target.release(a);
    expect(() => target.release(a)).toThrow(/twice/);
    expect(target.busy).toBe(1);
    expect(target.acquire(Uint32Array.of(1))?.index).toBe(a.index);
  });

  test("exact reuse never exceeds what a fresh prefill of whole chunks gives (property)", () => {
    const prompts = fc.array(
      fc.record({
        prompt: fc.array(fc.nat(1), { minLength: 1, maxLength: 20 }),
        out: fc.array(fc.nat(1), { maxLength: 9 }),
      }),
      { maxLength: 30 },
    );
    fc.assert(
      fc.property(prompts, (requests) => {
        const target = pool(4);
        const held: { tokens: number[]; prefilled: number }[] = [
          { tokens: [], prefilled: 0 },
          { tokens: [], prefilled: 0 },
        ];
        for (const { prompt, out } of requests) {
          const { index, reusable } = use(target, prompt, out);
          const state = held[index]!;
          expect(reusable % 4).toBe(0);
          expect(reusable).toBeLessThan(prompt.length);
          expect(reusable).toBeLessThanOrEqual(state.prefilled);
          expect(state.tokens.slice(0, reusable)).toEqual(prompt.slice(0, reusable));
          held[index] = { tokens: [...prompt, ...out], prefilled: Math.floor(prompt.length / 4) * 4 };
        }
      }),
      { numRuns: 200 },
    );
  });
});

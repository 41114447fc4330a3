import { describe, expect, test } from "vitest";
import type { Engine } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import { finished, type RequestChange, requestFor, run } from "./running.contract.ts";

/** Rule 7 of protocol/engine.ts: a sequence goes on where another worker left it. */
export function resumeContract(
  getEngine: () => Engine,
  prompt: (length: number, variant?: number) => Uint32Array,
): void {
  describe("resuming", () => {
    const maxTokens = 24;
    const resumes = (): boolean => getEngine().describe().card.capabilities.resume === true;

    const seeded = { temperature: 1, topP: 0.9, topK: 60, seed: 4711 };
    const penalties = { presencePenalty: 0.7, frequencyPenalty: 0.5, repetitionPenalty: 1.3 };
    const schema = JSON.stringify({
      type: "object",
      properties: { name: { type: "string" }, on: { type: "boolean" } },
      required: ["name", "on"],
    });
    const cases: { readonly what: string; readonly change: RequestChange }[] = [
      { what: "greedy", change: {} },
      { what: "seeded", change: { sampling: seeded } },
      { what: "greedy with penalties", change: { sampling: penalties } },
      { what: "seeded with penalties", change: { sampling: { ...seeded, ...penalties } } },
      { what: "greedy with logprobs", change: { topLogprobs: 2 } },
      { what: "seeded with logprobs", change: { sampling: seeded, topLogprobs: 2 } },
      { what: "greedy JSON", change: { grammar: { kind: "json_object" }, stop: { ignoreEos: false } } },
      {
        what: "seeded JSON of a schema",
        change: { sampling: seeded, grammar: { kind: "json_schema", schema }, stop: { ignoreEos: false } },
      },
      { what: "until its own end", change: { sampling: seeded, stop: { ignoreEos: false } } },
    ];
    const possible = (change: RequestChange): boolean => {
      const { grammars, maxTopLogprobs } = getEngine().describe().card.capabilities;
      if (change.grammar !== undefined && !grammars.includes(change.grammar.kind)) return false;
      return (change.topLogprobs ?? -1) <= maxTopLogprobs;
    };

    async function equalsUndisturbed(length: number, change: RequestChange): Promise<void> {
      const engine = getEngine();
      const whole = { ...change, stop: { maxTokens, ...change.stop } };
      const undisturbed = await finished(engine, requestFor(prompt(length), whole));
      const count = undisturbed.tokens.length;
      for (const cut of new Set([1, 2, count >> 1, count - 1, count])) {
        if (cut < 1 || cut > count) continue;
        const generated = Uint32Array.from(undisturbed.tokens.slice(0, cut));
        const resumed = await finished(engine, requestFor(prompt(length), { ...whole, generated }));
        const what = `cut behind ${cut} of ${count} tokens`;
        expect(resumed.tokens, what).toEqual(undisturbed.tokens.slice(cut));
        expect(resumed.finish.reason, what).toBe(undisturbed.finish.reason);
        expect(resumed.finish.stopTokenId, what).toBe(undisturbed.finish.stopTokenId);
        expect(resumed.logprobs.length, what).toBe(change.topLogprobs === undefined ? 0 : resumed.tokens.length);
        for (const [i, entry] of resumed.logprobs.entries()) {
          expect(entry.logprob, what).toBeCloseTo(undisturbed.logprobs[cut + i]!.logprob, 3);
        }
      }
    }

    test.each(cases)("$what: equal to an undisturbed run, wherever it was cut", async ({ change }) => {
      if (resumes() && possible(change)) await equalsUndisturbed(21, change);
    });

    test("minTokens and stop tokens count from the beginning of the sequence", async () => {
      if (!resumes()) return;
      const free = await finished(getEngine(), requestFor(prompt(12), { stop: { maxTokens } }));
      const stopTokenIds = [free.tokens[3]!, free.tokens[0]!];
      await equalsUndisturbed(12, { stop: { stopTokenIds, minTokens: 9 } });
    });

    test("resumed sequences and their neighbours do not touch each other", async () => {
      if (!resumes()) return;
      const engine = getEngine();
      const variants = Array.from({ length: Math.min(4, engine.describe().capacity.maxRunning) }, (_, i) => i);
      const change = { stop: { maxTokens } };
      const alone: number[][] = [];
      for (const variant of variants) {
        alone.push((await finished(engine, requestFor(prompt(10 + variant, variant), change))).tokens);
      }
      const together = await Promise.all(
        variants.map((variant) => {
          const generated = Uint32Array.from(alone[variant]!.slice(0, variant * 5));
          return finished(engine, requestFor(prompt(10 + variant, variant), { ...change, generated }));
        }),
      );
      expect(together.map(({ tokens }) => tokens)).toEqual(alone.map((tokens, variant) => tokens.slice(variant * 5)));
    });

    test("an abort while it is taken up ends it", async () => {
      if (!resumes()) return;
      const engine = getEngine();
      const change = { stop: { maxTokens: 200 } };
      const { tokens } = await finished(engine, requestFor(prompt(8), change));
      const controller = new AbortController();
      const generated = Uint32Array.from(tokens.slice(0, 190));
      const running = run(engine, requestFor(prompt(8), { ...change, generated }), controller.signal);
      setImmediate(() => controller.abort());
      const { finishes, error } = await running;
      expect(finishes.length + (error === undefined ? 0 : 1)).toBe(1);
      if (finishes[0]?.reason === "abort") {
        expect(finishes[0].usage.completionTokens).toBeGreaterThanOrEqual(generated.length);
      }
    });

    test("what cannot be taken up is refused, before the first token", async () => {
      const engine = getEngine();
      const first = (await finished(engine, requestFor(prompt(4), { stop: { maxTokens: 1 } }))).tokens;
      const impossible: RequestChange[] = resumes()
        ? [
            { generated: Uint32Array.of(0xffffffff) },
            { generated: Uint32Array.of(...first, ...first), stop: { maxTokens: 1 } },
            { generated: Uint32Array.from(first), stop: { stopTokenIds: first } },
          ]
        : [{ generated: Uint32Array.from(first) }];
      for (const change of impossible) {
        const { error, tokens, finishes } = await run(engine, requestFor(prompt(4), change));
        expect(error).toBeInstanceOf(StatorError);
        if (!resumes()) expect(error).toMatchObject({ code: "unsupported_parameter" });
        expect([tokens, finishes]).toEqual([[], []]);
      }
    });
  });
}

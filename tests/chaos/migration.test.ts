import { isDeepStrictEqual } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readStream } from "../harness/sse.ts";
import { StatorServer, until } from "../harness/stator-process.ts";

/*
 * Workers go away under running streams, and no client sees it: each answer is complete and has the text of an
 * undisturbed run.
 */

const path = "/v1/chat/completions";

const contentOf = (i: number): string => `Request ${i}: ${"tell me of rivers and light. ".repeat(1 + (i % 5))}`;

/** Different ways to generate, 16 in all. */
function bodies(model: string, maxTokens: number): object[] {
  const kinds: object[] =
    model === "stator-echo"
      ? [{}, { logprobs: true, top_logprobs: 1 }, { n: 2 }, { stop: ["never there"] }]
      : [
          { temperature: 0 },
          { temperature: 1, seed: 17 },
          { temperature: 0.8, top_p: 0.9, seed: 5, presence_penalty: 0.6, frequency_penalty: 0.4 },
          { temperature: 0, logprobs: true, top_logprobs: 2 },
          { temperature: 1, seed: 3, response_format: { type: "json_object" } },
          { temperature: 0, n: 2 },
          { temperature: 1, seed: 9, repetition_penalty: 1.2, min_tokens: 20 },
        ];
  return Array.from({ length: 16 }, (_, i) => ({
    model,
    messages: [{ role: "user", content: contentOf(i) }],
    max_tokens: maxTokens,
    stream: true,
    ...kinds[i % kinds.length],
  }));
}

interface Outcome {
  readonly error: string | undefined;
  readonly done: boolean;
  /** Text by choice. */
  readonly texts: Record<number, string>;
  readonly finishReasons: readonly string[];
}

/** Runs all at once. `onChunk` hears of each chunk: the worker that the answer began with, and how many have begun. */
async function runAll(
  server: StatorServer,
  all: readonly object[],
  onChunk: (owner: string, begun: number) => void = () => {},
): Promise<Outcome[]> {
  let begun = 0;
  return await Promise.all(
    all.map(async (body) => {
      const response = await server.post(path, body);
      if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
      const owner = response.headers.get("x-stator-worker-id")!;
      begun++;
      const { chunks, error, done, finishReasons } = await readStream(response, () => onChunk(owner, begun));
      const texts: Record<number, string> = {};
      for (const { index, delta } of chunks.flatMap(({ choices }) => choices ?? [])) {
        texts[index] = (texts[index] ?? "") + (delta?.content ?? "");
      }
      return { error: error?.code, done, texts, finishReasons: [...finishReasons].sort() };
    }),
  );
}

async function migrations(server: StatorServer): Promise<{ done: number; failed: number }> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const sum = (name: string): number =>
    [...text.matchAll(new RegExp(`^stator_frontend_${name}\\{.*\\} (\\d+)$`, "gm"))].reduce(
      (total, [, n]) => total + Number(n),
      0,
    );
  return { done: sum("migrations_total"), failed: sum("migrations_failed_total") };
}

async function allReady(server: StatorServer): Promise<void> {
  await until(
    async () => (await fetch(`${server.url}/health`)).status === 200,
    60_000,
    () => server.describe(),
  );
}

interface Victims {
  readonly ids: readonly string[];
  /** They go when so many chunks of the first one's streams have come ... */
  readonly afterChunks: number;
  /** ... and so many answers have begun. */
  readonly afterAnswers: number;
}

async function disturbed(
  server: StatorServer,
  all: readonly object[],
  signal: NodeJS.Signals,
  { ids, afterChunks, afterAnswers }: Victims,
): Promise<Outcome[]> {
  const pids = new Map((await server.workers()).map(({ id, pid }) => [id, pid]));
  let chunks = 0;
  let told = false;
  const outcomes = await runAll(server, all, (owner, begun) => {
    if (owner === ids[0]) chunks++;
    if (told || chunks < afterChunks || begun < afterAnswers) return;
    told = true;
    for (const id of ids) process.kill(pids.get(id)!, signal);
  });
  expect(told).toBe(true);
  return outcomes;
}

/** What differs, and from where on: a difference that comes once in a hundred runs must say enough at once. */
function differences(outcomes: readonly Outcome[], undisturbed: readonly Outcome[], all: readonly object[]): string[] {
  return outcomes.flatMap((outcome, i) => {
    const expected = undisturbed[i]!;
    if (isDeepStrictEqual(outcome, expected)) return [];
    const { messages: _, ...kind } = all[i] as { messages: unknown };
    const lines = [`request ${i} ${JSON.stringify(kind)}: ${outcome.error ?? outcome.finishReasons.join()}`];
    for (const [choice, text] of Object.entries(expected.texts)) {
      const got = outcome.texts[Number(choice)] ?? "";
      const at = [...text].findIndex((character, place) => character !== got[place]);
      lines.push(`choice ${choice} from ${at} of ${text.length}: ${JSON.stringify(got)}, not ${JSON.stringify(text)}`);
    }
    return lines;
  });
}

const complete = (outcomes: readonly Outcome[]): void => {
  for (const { error, done } of outcomes) expect({ error, done }).toEqual({ error: undefined, done: true });
};

describe("llama workers, builtin model", () => {
  const all = bodies("stator-builtin", 120);
  let server: StatorServer;
  let undisturbed: Outcome[];
  beforeAll(async () => {
    // One worker runs all that begin there; those of both do not fit into one and queue.
    const args = ["--workers", "2", "--set", "engine.sequences=10"];
    server = await StatorServer.serve([...args, "--set", "shutdown.drainTimeoutMs=50"]);
    undisturbed = await runAll(server, all);
    complete(undisturbed);
  });
  afterAll(() => server?.stop());

  it.each(["SIGKILL", "SIGTERM"] as const)(
    "%s to one of two: nobody notices, and every text is that of the undisturbed run",
    async (signal) => {
      await allReady(server);
      const before = await migrations(server);
      const outcomes = await disturbed(server, all, signal, { ids: ["worker-1"], afterChunks: 25, afterAnswers: 0 });
      expect(differences(outcomes, undisturbed, all)).toEqual([]);
      const after = await migrations(server);
      expect(after.done).toBeGreaterThan(before.done);
      expect(after.failed).toBe(0);
      expect(await server.inFlight()).toBe(0);
    },
    90_000,
  );

  it("SIGKILL to both: the streams wait for the new workers and go on there", async () => {
    await allReady(server);
    // A request that no worker has begun with does not wait: without any worker it ends at once.
    const victims = { ids: ["worker-1", "worker-2"], afterChunks: 20, afterAnswers: all.length };
    const outcomes = await disturbed(server, all, "SIGKILL", victims);
    expect(differences(outcomes, undisturbed, all)).toEqual([]);
    expect((await migrations(server)).failed).toBe(0);
  }, 90_000);
});

describe("echo workers", () => {
  const all = bodies("stator-echo", 150);
  let server: StatorServer;
  beforeAll(async () => {
    const args = ["--engine", "echo", "--token-rate", "60", "--workers", "2"];
    server = await StatorServer.serve([...args, "--set", "shutdown.drainTimeoutMs=300"]);
  });
  afterAll(() => server?.stop());

  it.each(["SIGKILL", "SIGTERM", "SIGSTOP"] as const)(
    "%s during paced streams: none fails, none repeats or loses a byte",
    async (signal) => {
      await allReady(server);
      const outcomes = await disturbed(server, all, signal, { ids: ["worker-1"], afterChunks: 100, afterAnswers: 0 });
      complete(outcomes);
      for (const [i, { texts, finishReasons }] of outcomes.entries()) {
        expect(new Set(finishReasons)).toEqual(new Set(["length"]));
        const prompt = `user: ${contentOf(i)}\nassistant: `;
        for (const text of Object.values(texts)) expect(text).toBe(prompt.repeat(10).slice(0, 150));
      }
      const { done, failed } = await migrations(server);
      expect(done).toBeGreaterThan(0);
      expect(failed).toBe(0);
    },
    90_000,
  );
});

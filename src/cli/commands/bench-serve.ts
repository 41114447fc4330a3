import { constants } from "node:fs";
import { access } from "node:fs/promises";
import { BytePrompts } from "../../loadgen/byte-prompts.ts";
import { type LoadReport, reportOf, reportText } from "../../loadgen/load-report.ts";
import { runLoad } from "../../loadgen/load-run.ts";
import { OpenAiClient } from "../../loadgen/openai-client.ts";
import { PromptMaker, type Prompts, sampleOf } from "../../loadgen/prompt-maker.ts";
import { StatorError } from "../../protocol/errors.ts";
import { seededRandom } from "../../protocol/random.ts";
import type { ArrivalPattern } from "../../traces/arrivals.ts";
import { generateTrace } from "../../traces/generate.ts";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { objectives } from "../compose/objectives.ts";
import { onStopSignals } from "../compose/stop-signals.ts";
import { openTrace } from "../compose/trace-file.ts";
import { ConfigError } from "../config/config.ts";
import { ProgressLine } from "./progress-line.ts";

export interface BenchServeOptions {
  readonly url: string;
  readonly model?: string;
  readonly endpoint: "chat" | "completions";
  readonly apiKey: string | undefined;
  readonly requests: number;
  readonly rate?: number;
  readonly arrivals: "poisson" | "constant";
  readonly concurrency?: number;
  readonly trace?: string;
  readonly speed: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly sharedPrefix: number;
  readonly prefixGroups: number;
  readonly turns: number;
  readonly delayMs: number;
  readonly seed: number;
  /** The server's tokens are bytes: prompts of exactly the length asked for. */
  readonly byteTokens?: boolean;
  readonly ignoreEos: boolean;
  readonly timeoutMs: number;
  readonly sloTtftMs?: number;
  readonly sloTpotMs?: number;
  readonly sloE2eMs?: number;
  readonly json?: boolean;
}

const DEFAULT_CONCURRENCY = 16;
const MAX_IN_FLIGHT = 10_000;
const CALIBRATION_WORDS = 256;

/** `stator bench serve`: loads any OpenAI-compatible server and says how it did. Exit code 1 when nothing completed. */
export async function benchServe(options: BenchServeOptions): Promise<void> {
  const stop = new AbortController();
  onStopSignals((count) => (count === 1 ? stop.abort() : process.exit(130)), ["SIGINT", "SIGTERM"]);
  const url = baseAddress(options.url);
  if (options.trace !== undefined) await assertReadable(options.trace);
  if (options.byteTokens === true && options.endpoint !== "completions") {
    throw new ConfigError("--byte-tokens needs --endpoint completions: a chat template would add to the prompts.");
  }
  const { endpoint, apiKey, ignoreEos, timeoutMs } = options;
  const target = { url, endpoint, ignoreEos, timeoutMs, ...(apiKey === undefined ? {} : { apiKey }) };
  const model = options.model ?? (await listedModel({ ...target, model: "" }, stop.signal));
  const client = new OpenAiClient({ ...target, model });
  try {
    const prompts = await promptsFor(client, url, options, stop.signal);
    const line = options.json !== true && process.stderr.isTTY ? new ProgressLine(process.stderr) : undefined;
    const isScheduled = options.trace !== undefined ? options.concurrency === undefined : options.rate !== undefined;
    const records = await runLoad({
      requests: workload(options),
      loop: isScheduled ? "schedule" : "closed",
      concurrency: options.concurrency ?? (isScheduled ? MAX_IN_FLIGHT : DEFAULT_CONCURRENCY),
      client,
      prompts,
      signal: stop.signal,
      ...(line === undefined ? {} : { onProgress: (progress) => line.update(progress) }),
    });
    line?.clear();
    const report = reportOf(records, objectives(options));
    process.stdout.write(options.json === true ? `${JSON.stringify(report, undefined, 2)}\n` : reportText(report));
    process.exitCode = exitCode(report);
  } finally {
    await client.close();
  }
}

/** Without the `/v1` that clients want in their `base_url`. */
function baseAddress(url: string): string {
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new ConfigError(`--url ${url}: write a whole address, for example http://127.0.0.1:8000.`);
  }
  return url.replace(/\/+$/, "").replace(/\/v1$/, "");
}

async function assertReadable(trace: string): Promise<void> {
  await access(trace, constants.R_OK).catch((cause: NodeJS.ErrnoException) => {
    throw new ConfigError(`--trace ${trace}: cannot be read (${cause.code}).`);
  });
}

function exitCode(report: LoadReport): number {
  return report.completed_requests === 0 ? 1 : 0;
}

async function listedModel(
  target: ConstructorParameters<typeof OpenAiClient>[0],
  signal: AbortSignal,
): Promise<string> {
  const client = new OpenAiClient(target);
  try {
    const model = await client.firstModel(AbortSignal.any([signal, AbortSignal.timeout(10_000)]));
    if (model !== undefined) return model;
    throw new ConfigError(`stator bench serve: ${target.url} lists no model; give --model.`);
  } catch (cause) {
    if (cause instanceof ConfigError) throw cause;
    const reason = cause instanceof Error ? cause.message || cause.name : String(cause);
    const message = `${target.url} does not answer (${reason}). Is the server running?`;
    throw new StatorError("not_ready", message, { cause });
  } finally {
    await client.close();
  }
}

async function promptsFor(
  client: OpenAiClient,
  url: string,
  { byteTokens, seed }: BenchServeOptions,
  signal: AbortSignal,
): Promise<Prompts> {
  return byteTokens === true ? new BytePrompts(seed) : new PromptMaker(await tokensPerWord(client, url, signal), seed);
}

/** Two prompts of different length show how the server counts, whatever its chat template adds. */
async function tokensPerWord(client: OpenAiClient, url: string, signal: AbortSignal): Promise<number> {
  const counted: number[] = [];
  for (const words of [CALIBRATION_WORDS, 2 * CALIBRATION_WORDS]) {
    const { promptTokens, error } = await client.send(sampleOf(words), 1, 0, signal);
    if (error !== undefined) throw new StatorError("not_ready", `${url} refused a first request: ${error}.`);
    counted.push(promptTokens);
  }
  const perWord = (counted[1]! - counted[0]!) / CALIBRATION_WORDS;
  // A server that reports no usage: English in common vocabularies.
  return perWord > 0 ? perWord : 1;
}

async function* workload(options: BenchServeOptions): AsyncGenerator<TraceRequest> {
  const { trace, speed, requests } = options;
  if (trace === undefined) {
    yield* generateTrace(
      {
        requests,
        arrivals: arrivalsOf(options),
        input: { kind: "fixed", tokens: options.inputTokens },
        output: { kind: "fixed", tokens: options.outputTokens },
        sharedPrefixRatio: options.sharedPrefix,
        prefixGroups: options.prefixGroups,
        turns: options.turns,
        delayMs: options.delayMs,
      },
      seededRandom(options.seed),
    );
    return;
  }
  let count = 0;
  for await (const request of openTrace(trace, process.env.STATOR_TRACES)) {
    if (count++ >= requests) return;
    const { delayMs } = request;
    const arrivalMs = request.arrivalMs / speed;
    yield { ...request, arrivalMs, ...(delayMs === undefined ? {} : { delayMs: delayMs / speed }) };
  }
}

function arrivalsOf({ rate, arrivals }: BenchServeOptions): ArrivalPattern {
  return { kind: rate === undefined ? "constant" : arrivals, perSecond: rate ?? 1_000_000 };
}

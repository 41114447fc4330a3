import { z } from "zod";
import { seededRandom } from "../../protocol/random.ts";
import { type GeneratorSpec, generateTrace, type LengthSpec } from "../../traces/generate.ts";
import { PrefixTree } from "../../traces/prefix-tree.ts";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { ConfigError } from "../config/config.ts";
import { readYamlFile } from "./yaml-file.ts";

const MAX_REQUESTS = 1_000_000;

const requests = z.int().min(1).max(MAX_REQUESTS);
const seed = z.int().min(0).default(1);
const rate = z.number().positive().max(1e6);
const seconds = z.number().positive().max(1e9);
const tokens = z.int().min(1).max(10_000_000);
const multiplier = z.number().positive().max(1000);

const length = z.union([
  tokens,
  z.strictObject({ min: tokens, max: tokens }).refine(({ min, max }) => min <= max, "min is above max"),
  z.strictObject({ mean: tokens, sigma: z.number().min(0).max(3).default(1) }),
]);

const arrivals = z.union([
  z.strictObject({ constant: rate }),
  z.strictObject({ poisson: rate }),
  z.strictObject({ sine: z.strictObject({ min: z.number().min(0).max(1e6), max: rate, periodSeconds: seconds }) }),
  z.strictObject({
    bursts: z.strictObject({
      rate: z.number().min(0).max(1e6),
      burst: rate,
      everySeconds: seconds,
      burstSeconds: seconds,
    }),
  }),
]);

const generated = z.strictObject({
  requests,
  arrivals,
  input: length,
  output: length,
  sharedPrefixRatio: z.number().min(0).max(1).default(0),
  prefixGroups: z.int().min(1).max(100_000).default(1),
  turns: z.int().min(1).max(10_000).default(1),
  delayMs: z.number().min(0).max(1e9).default(0),
  seed,
});

const synthesized = z.strictObject({
  from: z.string().min(1),
  requests,
  speedup: multiplier.default(1),
  prefixLengthMultiplier: multiplier.default(1),
  promptLengthMultiplier: multiplier.default(1),
  rootMultiplier: z.int().min(1).max(1000).default(1),
  maxInputTokens: tokens.optional(),
  seed,
});

/**
 * The workload that a YAML file describes: generated from rates and lengths, or, with `from`, synthesized with the structure
 * of a recorded trace, which `read` reads. The same file gives the same workload. Throws `ConfigError` that names the field.
 */
export async function workloadOf(
  path: string,
  read: (trace: string) => Promise<readonly TraceRequest[]>,
): Promise<Iterable<TraceRequest>> {
  const document = readYamlFile(path, "");
  if (typeof document !== "object" || document === null || Array.isArray(document)) {
    throw new ConfigError(`${path}: write a map with requests, arrivals, input and output, or with from and requests.`);
  }
  if ("from" in document) {
    const { from, seed: start, maxInputTokens, ...rest } = checked(path, synthesized, document);
    if (/\.ya?ml$/.test(from)) throw new ConfigError(`${path}: from: name a recorded trace, not ${from}.`);
    const options = { ...rest, ...(maxInputTokens === undefined ? {} : { maxInputTokens }) };
    return new PrefixTree(await read(from)).synthesize(options, seededRandom(start));
  }
  const { seed: start, arrivals: pattern, input, output, ...rest } = checked(path, generated, document);
  const spec = { ...rest, arrivals: patternOf(pattern), input: lengthOf(input), output: lengthOf(output) };
  return generateTrace(spec, seededRandom(start));
}

function checked<Schema extends z.ZodType>(path: string, schema: Schema, document: object): z.output<Schema> {
  const result = schema.safeParse(document);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const field = issue!.path.join(".");
  const forms: Readonly<Record<string, string>> = {
    arrivals:
      "write { constant: RATE }, { poisson: RATE }, { sine: { min, max, periodSeconds } } or { bursts: { rate, burst, everySeconds, burstSeconds } }, rates per second",
    input: "write a number of tokens, { min, max } or { mean, sigma }",
    output: "write a number of tokens, { min, max } or { mean, sigma }",
  };
  throw new ConfigError(`${path}: ${field === "" ? "" : `${field}: `}${forms[field] ?? issue!.message}.`);
}

function patternOf(pattern: z.output<typeof arrivals>): GeneratorSpec["arrivals"] {
  if ("constant" in pattern) return { kind: "constant", perSecond: pattern.constant };
  if ("poisson" in pattern) return { kind: "poisson", perSecond: pattern.poisson };
  if ("sine" in pattern) {
    const { min, max, periodSeconds } = pattern.sine;
    return { kind: "sine", minPerSecond: min, maxPerSecond: max, periodSeconds };
  }
  const { rate: perSecond, burst: burstPerSecond, everySeconds, burstSeconds } = pattern.bursts;
  return { kind: "bursts", perSecond, burstPerSecond, everySeconds, burstSeconds };
}

function lengthOf(spec: z.output<typeof length>): LengthSpec {
  if (typeof spec === "number") return { kind: "fixed", tokens: spec };
  return "min" in spec ? { kind: "uniform", ...spec } : { kind: "lognormal", ...spec };
}

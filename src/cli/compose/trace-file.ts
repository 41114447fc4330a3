import { createReadStream, statSync } from "node:fs";
import { join } from "node:path";
import { parseAzure } from "../../traces/azure.ts";
import { parseMooncake } from "../../traces/mooncake.ts";
import type { TraceRequest } from "../../traces/trace-request.ts";
import { ConfigError } from "../config/config.ts";
import { workloadOf } from "./workload-file.ts";

export interface TraceChoice {
  /** A path, or the name of a file in `folder`, with or without its ending. */
  readonly name: string;
  /** Where traces are, besides the working directory. */
  readonly folder: string | undefined;
  /** At most so many, from the start. */
  readonly requests: number;
}

/** The whole workload. Throws `ConfigError` when there is none. */
export async function readTrace({ name, folder, requests }: TraceChoice): Promise<TraceRequest[]> {
  const path = pathOf(name, folder);
  const rows: TraceRequest[] = [];
  for await (const request of openTrace(path, folder)) {
    if (rows.length === requests) break;
    rows.push(request);
  }
  if (rows.length === 0) throw new ConfigError(`The trace ${path} has no requests.`);
  return rows;
}

/** By the ending of its name: Azure's CSV, a YAML file that describes a workload; otherwise Mooncake's JSONL. */
export async function* openTrace(path: string, folder: string | undefined): AsyncGenerator<TraceRequest> {
  if (/\.ya?ml$/.test(path)) {
    const read = (name: string) => readTrace({ name, folder, requests: Number.POSITIVE_INFINITY });
    yield* await workloadOf(path, read);
    return;
  }
  const source = createReadStream(path, "utf8");
  yield* path.endsWith(".csv") ? parseAzure(source) : parseMooncake(source);
}

function pathOf(name: string, folder: string | undefined): string {
  const inFolder =
    folder === undefined ? [] : ["", ".jsonl", ".csv", ".yaml"].map((ending) => join(folder, `${name}${ending}`));
  const path = [name, ...inFolder].find(
    (candidate) => statSync(candidate, { throwIfNoEntry: false })?.isDirectory() === false,
  );
  if (path !== undefined) return path;
  const places = folder === undefined ? "STATOR_TRACES names no folder to look in" : `nor is it in ${folder}`;
  throw new ConfigError(
    `There is no trace ${JSON.stringify(name)}, and ${places}. Traces are published in the GitHub repositories ` +
      "kvcache-ai/Mooncake (FAST25-release/traces: *.jsonl) and Azure/AzurePublicDataset (data: AzureLLMInferenceTrace_*.csv).",
  );
}

import { homedir } from "node:os";
import { join } from "node:path";
import {
  type DownloadProgress,
  type HfDownloadOptions,
  parseModelSource,
  type ResolvedModel,
  resolveModel,
} from "../../model-files/index.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import type { Config } from "../config/config.ts";

/** A model that is here, ready to be loaded. */
export interface PreparedModel {
  /** `builtin` or a path: what another process needs to find it without a download. */
  readonly source: string;
  readonly path: string;
  readonly name: string;
  readonly isBuiltin: boolean;
}

/** Longest download of a model. */
const DOWNLOAD_TIMEOUT_MS = 24 * 3_600_000;

/** Finds the configured model, downloading it when needed. undefined = the engine needs none. */
export async function prepareModel(config: Config, logger: Logger): Promise<PreparedModel | undefined> {
  if (config.get("engine.kind") !== "llama") return undefined;
  const hub = { ...hubOptions(config), onProgress: progressReporter(logger) };
  const resolved = await resolveModel(config.get("model.source"), { hub }, AbortSignal.timeout(DOWNLOAD_TIMEOUT_MS));
  return prepared(config, resolved);
}

/** Where the configured model is, without any download: for the doctor. */
export async function locateModel(config: Config): Promise<{ path: string | undefined; problem: string | undefined }> {
  const source = config.get("model.source");
  try {
    const hub = { ...hubOptions(config), offline: true };
    const { path } = await resolveModel(source, { hub }, AbortSignal.timeout(10_000));
    return { path, problem: undefined };
  } catch (error) {
    if (!(error instanceof StatorError)) throw error;
    const missingDownload = source.startsWith("hf:") && isModelName(source);
    return { path: undefined, problem: missingDownload ? undefined : error.message };
  }
}

function isModelName(source: string): boolean {
  try {
    return parseModelSource(source).kind === "hf";
  } catch {
    return false;
  }
}

function prepared(config: Config, { path, name, source }: ResolvedModel): PreparedModel {
  const isBuiltin = source.kind === "builtin";
  return { source: isBuiltin ? "builtin" : path, path, name: config.get("model.name") || name, isBuiltin };
}

function hubOptions(config: Config): HfDownloadOptions {
  const token = config.get("huggingface.token");
  return {
    endpoint: config.get("huggingface.endpoint"),
    cacheDir: config.get("huggingface.cache") || join(homedir(), ".cache", "huggingface", "hub"),
    offline: config.get("huggingface.offline"),
    ...(token === "" ? {} : { token }),
  };
}

/** A bar on a terminal, a log line per tenth otherwise. */
function progressReporter(logger: Logger): (progress: DownloadProgress) => void {
  let lastTenth = -1;
  let lastDrawnAt = 0;
  return ({ file, receivedBytes, totalBytes }) => {
    const share = totalBytes ? receivedBytes / totalBytes : 0;
    const done = totalBytes !== undefined && receivedBytes >= totalBytes;
    if (process.stderr.isTTY) {
      if (!done && performance.now() - lastDrawnAt < 100) return;
      lastDrawnAt = performance.now();
      const bar = "#".repeat(Math.floor(share * 30)).padEnd(30, ".");
      process.stderr.write(
        `\r${file} [${bar}] ${(receivedBytes / 1e6).toFixed(0)} of ${((totalBytes ?? 0) / 1e6).toFixed(0)} MB${done ? "\n" : ""}`,
      );
      return;
    }
    const tenth = Math.floor(share * 10);
    if (tenth === lastTenth) return;
    lastTenth = tenth;
    logger.info({ file, receivedBytes, totalBytes }, "downloading the model");
  };
}

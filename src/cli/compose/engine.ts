import { homedir } from "node:os";
import { join } from "node:path";
import { EchoEngine } from "../../engines/echo/index.ts";
import type { Engine } from "../../protocol/engine.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { configuredMockEngine } from "./mock-engine.ts";
import type { PreparedModel } from "./model.ts";
import { threadsPerWorker } from "./worker-fleet.ts";

/** The name under which the configured model is served. */
export function servedName(config: Config, model: PreparedModel | undefined): string {
  return model?.name ?? (config.get("model.name") || `stator-${config.get("engine.kind")}`);
}

/** The engine of one worker. `model`: what `prepareModel` returned. */
export async function configuredEngine(
  config: Config,
  model: PreparedModel | undefined,
  logger: Logger,
): Promise<Engine> {
  const contextLength = config.get("model.contextLength");
  const name = servedName(config, model);
  if (config.get("engine.kind") === "mocker") return configuredMockEngine(config, name);
  const shared = { name, aliases: config.get("model.aliases"), ...(contextLength > 0 ? { contextLength } : {}) };
  if (model === undefined) {
    return new EchoEngine({
      ...shared,
      tokenRate: config.get("engine.tokenRate"),
      maxRunning: config.get("engine.maxRunning"),
    });
  }
  // Loaded here and not above: the native engine is optional.
  const { createLlamaEngine } = await import("../../engines/llama/index.ts");
  const flash = config.get("engine.flashAttention");
  const exact = flash === "off" || (flash === "auto" && model.isBuiltin);
  const tokenizerPath = config.get("model.tokenizer");
  const engine = await createLlamaEngine(
    {
      ...shared,
      modelPath: model.path,
      sequences: config.get("engine.sequences"),
      threads: threadsPerWorker(config),
      batchSize: config.get("engine.batchSize"),
      ...(exact ? { flashAttention: false } : flash === "on" ? { flashAttention: true } : {}),
      kvType: config.get("engine.kvType"),
      ...(tokenizerPath === "" ? {} : { tokenizerPath }),
      digestCacheFile: join(homedir(), ".cache", "stator", "digests.json"),
      stallTimeoutMs: config.get("engine.stallTimeoutMs"),
      onLog: (level, message) => logger.debug({ level }, message.trim()),
    },
    AbortSignal.timeout(config.get("startup.timeoutMs")),
  );
  const longest = engine.describe().card.contextLength;
  if (contextLength > longest) {
    await engine.close();
    throw new ConfigError(`model.contextLength = ${contextLength}: ${name} was trained for ${longest} tokens at most.`);
  }
  return engine;
}

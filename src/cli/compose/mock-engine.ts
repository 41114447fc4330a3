import { readFileSync } from "node:fs";
import { MockEngine } from "../../engines/mocker/index.ts";
import {
  type EngineSettings,
  engineConfig,
  fixedTiming,
  type ModelShape,
  modelShapeFromConfig,
  polynomialTiming,
} from "../../mocker/index.ts";
import type { Engine } from "../../protocol/engine.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { rooflineSettings } from "./simulated-hardware.ts";

/** The simulated engine of one worker. */
export function configuredMockEngine(config: Config, name: string): Engine {
  const contextLength = config.get("model.contextLength");
  return new MockEngine({
    name,
    aliases: config.get("model.aliases"),
    settings: settingsOf(config),
    ranks: config.get("mocker.ranks"),
    speedup: config.get("mocker.speedup"),
    ...(contextLength > 0 ? { contextLength } : {}),
  });
}

function settingsOf(config: Config): EngineSettings {
  const blocks = config.get("mocker.blocks");
  const blockTokens = config.get("mocker.blockTokens");
  const common = {
    flavour: config.get("mocker.flavour"),
    maxSequences: config.get("mocker.maxSequences"),
    startupMs: config.get("mocker.startupMs"),
    ...(blockTokens > 0 ? { blockTokens } : {}),
    ...(blocks > 0 ? { blocks } : {}),
  };
  switch (config.get("mocker.timing")) {
    case "polynomial":
      return { ...common, timing: polynomialTiming };
    case "fixed":
      return { ...common, timing: fixedTiming(config.get("mocker.prefillMs"), config.get("mocker.decodeMs")) };
    case "roofline": {
      const hardware = config.get("mocker.gpu");
      const tensorParallel = config.get("mocker.tensorParallel");
      const { flavour } = common;
      const size = blockTokens > 0 ? blockTokens : engineConfig({ flavour, timing: polynomialTiming }).blockTokens;
      const machine = { flavour, blockTokens: size, model: modelShape(config), hardware, tensorParallel };
      const settings = { ...rooflineSettings(machine), ...common };
      if (settings.blocks >= 1) return settings;
      throw new ConfigError(
        `mocker.gpu = ${hardware}: the model does not fit on ${tensorParallel} of them; raise mocker.tensorParallel.`,
      );
    }
  }
}

function modelShape(config: Config): ModelShape {
  const path = config.get("mocker.modelConfig");
  if (path === "") throw new ConfigError("mocker.modelConfig: roofline timing needs a Hugging Face config.json.");
  try {
    return modelShapeFromConfig(JSON.parse(readFileSync(path, "utf8")));
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`mocker.modelConfig = ${path}: ${reason}`, { cause });
  }
}

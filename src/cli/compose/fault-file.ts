import { type FaultScript, parseFaultScript } from "../../mocker/index.ts";
import { StatorError } from "../../protocol/errors.ts";
import { ConfigError } from "../config/config.ts";
import { readYamlFile } from "./yaml-file.ts";

/** Reads a fault script. `setting`: what named the file; it begins each message. Throws `ConfigError`. */
export function readFaultScript(path: string, setting: string): FaultScript {
  const document = readYamlFile(path, setting);
  try {
    return parseFaultScript(document);
  } catch (cause) {
    if (cause instanceof StatorError) throw new ConfigError(`${setting} ${path}: ${cause.message}`, { cause });
    throw cause;
  }
}

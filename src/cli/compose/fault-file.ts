import { readFileSync } from "node:fs";
import { parseDocument } from "yaml";
import { type FaultScript, parseFaultScript } from "../../mocker/index.ts";
import { StatorError } from "../../protocol/errors.ts";
import { ConfigError } from "../config/config.ts";

/** Reads a fault script. `setting`: what named the file; it begins each message. Throws `ConfigError`. */
export function readFaultScript(path: string, setting: string): FaultScript {
  const failed = (reason: string, cause?: unknown) => new ConfigError(`${setting} ${path}: ${reason}`, { cause });
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw failed(cause instanceof Error ? cause.message : String(cause), cause);
  }
  const document = parseDocument(text, { uniqueKeys: true });
  const [problem] = document.errors;
  if (problem !== undefined) throw failed(problem.message.split("\n")[0]!, problem);
  try {
    // Aliases may not blow a small file up.
    return parseFaultScript(document.toJS({ maxAliasCount: 100 }));
  } catch (cause) {
    if (cause instanceof StatorError || cause instanceof ReferenceError) throw failed(cause.message, cause);
    throw cause;
  }
}

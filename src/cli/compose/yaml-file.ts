import { readFileSync, statSync } from "node:fs";
import { parseDocument } from "yaml";
import { ConfigError } from "../config/config.ts";

const MAX_FILE_BYTES = 4 * 1024 * 1024;

/** What a YAML file holds, unchecked. `setting` named the file and begins each message. Throws `ConfigError`. */
export function readYamlFile(path: string, setting: string): unknown {
  try {
    if (statSync(path).size > MAX_FILE_BYTES) throw new Error(`larger than ${MAX_FILE_BYTES} bytes`);
    const document = parseDocument(readFileSync(path, "utf8"), { uniqueKeys: true });
    if (document.errors.length > 0) throw document.errors[0];
    // Aliases may not blow a small file up.
    return document.toJS({ maxAliasCount: 100 });
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message.split("\n")[0] : String(cause);
    throw new ConfigError(`${setting} ${path}: ${reason}`.trim(), { cause });
  }
}

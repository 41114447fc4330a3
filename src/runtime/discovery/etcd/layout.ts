import { type InstanceKey, type InstanceRecord, instanceKey } from "../../../protocol/instance.ts";
import type { Scope } from "../discovery.ts";
import { readInstanceRecord } from "../instance-schema.ts";

/*
 *   <root>/v1/instances/<namespace>/<component>/<worker id>     {"version":1,"record":{...}}
 *
 * Ids have no slash, so a scope is a prefix.
 */

const VERSION = 1;

export function prefixOf(root: string, { namespace, component }: Scope): string {
  const parts = [namespace, namespace && component].filter((part) => part !== undefined);
  return [root, "v1", "instances", ...parts, ""].join("/");
}

export function keyOf(root: string, key: InstanceKey): string {
  return prefixOf(root, {}) + instanceKey(key);
}

export function writeValue(record: InstanceRecord): string {
  return JSON.stringify({ version: VERSION, record });
}

/** The record, or why it is none. */
export function readValue(value: string): InstanceRecord | string {
  let content: unknown;
  try {
    content = JSON.parse(value);
  } catch {
    return "it is not JSON";
  }
  if (typeof content !== "object" || content === null || !("record" in content)) return "it has no record";
  if (!("version" in content) || content.version !== VERSION) return `its version is not ${VERSION}`;
  return readInstanceRecord(content.record);
}

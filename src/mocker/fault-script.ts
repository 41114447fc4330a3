import { closest } from "../protocol/closest.ts";
import { StatorError } from "../protocol/errors.ts";

export const faultKinds = ["kill", "freeze", "slowDown", "dropEvents", "cutLink"] as const;
export type FaultKind = (typeof faultKinds)[number];

/** A fault begins or ends. */
export interface FaultPoint {
  /** Ms after the start of the fleet. */
  readonly atMs: number;
  readonly begins: boolean;
  readonly kind: FaultKind;
  readonly workers: "all" | readonly string[];
  /** Of `slowDown`: passes take so many times as long. 1 for other kinds. */
  readonly factor: number;
  /** Place in the script, for messages: `faults[2]`. */
  readonly entry: string;
}

/** What happens to which workers, in order of time; at one moment ends come before beginnings. */
export interface FaultScript {
  readonly points: readonly FaultPoint[];
}

const MAX_ENTRIES = 10_000;
const MAX_MS = 365 * 86_400_000;
const MAX_FACTOR = 1_000_000;
const unitMs: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

/**
 * Checks a parsed script: a list of entries, or a map with such a list under `faults`. Each entry has a time `at`, one
 * action that names its workers, and for how long it holds; without that, to the end.
 *
 *     { at: 30s, kill: worker-2, restartAfter: 20s }        { at: 45s, freeze: [worker-1, worker-3], for: 5s }
 *     { at: 60s, slowDown: all, factor: 4, for: 30s }
 *
 * Throws `invalid_value` that names entry and field.
 */
export function parseFaultScript(document: unknown): FaultScript {
  const points = entriesOf(document).flatMap((entry, index) => pointsOf(entry, `faults[${index}]`));
  // Stable: what happens at one moment keeps the order of the script.
  points.sort((one, other) => one.atMs - other.atMs || Number(one.begins) - Number(other.begins));
  return { points };
}

/** The workers that a script names, without `all`, each once. */
export function namedWorkers({ points }: FaultScript): string[] {
  return [...new Set(points.flatMap(({ workers }) => (workers === "all" ? [] : workers)))];
}

/** Throws when the script names a worker that is none of `workers`. */
export function checkNames({ points }: FaultScript, workers: readonly string[]): void {
  const known = new Set(workers);
  for (const { entry, kind, workers: named } of points) {
    if (named === "all") continue;
    const stranger = named.find((name) => !known.has(name));
    if (stranger === undefined) continue;
    const shown = workers.length <= 20 ? workers.join(", ") : `${workers.slice(0, 20).join(", ")}, ...`;
    throw wrong(`${entry}.${kind}`, `there is no worker ${quote(stranger)}; the workers are ${shown}`);
  }
}

function entriesOf(document: unknown): readonly unknown[] {
  const list = isRecord(document) ? document.faults : document;
  if (isRecord(document)) {
    const other = Object.keys(document).find((name) => name !== "faults");
    if (other !== undefined) throw unknownKey(other, "a fault script", ["faults"]);
  }
  if (!Array.isArray(list)) {
    throw wrong("faults", "must be a list of entries such as { at: 30s, kill: worker-2 }");
  }
  if (list.length > MAX_ENTRIES) throw wrong("faults", `has ${list.length} entries; at most ${MAX_ENTRIES}`);
  return list;
}

function pointsOf(entry: unknown, path: string): FaultPoint[] {
  if (!isRecord(entry)) throw wrong(path, "must be a map such as { at: 30s, kill: worker-2 }");
  const kinds = faultKinds.filter((kind) => entry[kind] !== undefined);
  const [kind] = kinds;
  const length = kind === "kill" ? "restartAfter" : "for";
  const fields = ["at", length, ...(kind === "slowDown" ? ["factor"] : [])];
  for (const name of Object.keys(entry)) {
    if (isKind(name) || fields.includes(name)) continue;
    if (kind === "kill" && name === "for") throw wrong(`${path}.for`, "kill has restartAfter instead");
    throw unknownKey(name, path, [...fields, ...(kind === undefined ? faultKinds : [])]);
  }
  if (kind === undefined) throw wrong(path, `has no action; use one of ${faultKinds.join(", ")}`);
  if (kinds.length > 1) throw wrong(path, `has ${kinds.join(" and ")}; use one entry for each`);

  const atMs = timeOf(entry.at, `${path}.at`);
  const workers = workersOf(entry[kind], `${path}.${kind}`);
  const factor = kind === "slowDown" ? factorOf(entry.factor, `${path}.factor`) : 1;
  const common = { kind, workers, factor, entry: path };
  const begin: FaultPoint = { ...common, atMs, begins: true };
  if (entry[length] === undefined) return [begin];
  const lengthMs = timeOf(entry[length], `${path}.${length}`);
  if (lengthMs === 0) throw wrong(`${path}.${length}`, "must be longer than 0");
  return [begin, { ...common, atMs: atMs + lengthMs, begins: false }];
}

function timeOf(value: unknown, path: string): number {
  const parts = typeof value === "string" ? /^(\d+(?:\.\d+)?) ?(ms|s|m|h)$/.exec(value.trim()) : null;
  const ms = typeof value === "number" ? value : parts === null ? Number.NaN : Number(parts[1]) * unitMs[parts[2]!]!;
  if (ms >= 0 && ms <= MAX_MS) return ms;
  const given = value === undefined ? "is missing" : `is ${quote(value)}`;
  throw wrong(path, `${given}; give milliseconds, or a time such as 250ms, 30s, 2m, 1h, of at most 365 days`);
}

function workersOf(value: unknown, path: string): "all" | readonly string[] {
  if (value === "all") return "all";
  const names = Array.isArray(value) ? value : [value];
  const isName = (name: unknown): boolean => typeof name === "string" && name !== "" && name.length <= 256;
  if (names.length === 0 || !names.every(isName)) {
    throw wrong(path, "must be the name of a worker, a list of names, or all");
  }
  if (names.includes("all")) throw wrong(path, "has all in a list; write all alone");
  return [...new Set(names as string[])];
}

function factorOf(value: unknown, path: string): number {
  if (typeof value === "number" && value >= 0.001 && value <= MAX_FACTOR) return value;
  const given = value === undefined ? "is missing" : `is ${quote(value)}`;
  throw wrong(path, `${given}; give a number from 0.001 to ${MAX_FACTOR}, 4 = four times as slow`);
}

function isKind(name: string): name is FaultKind {
  return (faultKinds as readonly string[]).includes(name);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function unknownKey(name: string, path: string, known: readonly string[]): StatorError {
  const meant = closest(name, known);
  const hint = meant === undefined ? `known are ${known.join(", ")}` : `did you mean ${meant}?`;
  return new StatorError("invalid_value", `Unknown key ${quote(name)} in ${path}; ${hint}`, { param: path });
}

function wrong(path: string, what: string): StatorError {
  return new StatorError("invalid_value", `${path}: ${what}.`, { param: path });
}

function quote(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 100 ? `${text.slice(0, 100)}...` : text;
}

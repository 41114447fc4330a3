import { StatorError } from "../../protocol/errors.ts";
import { givesTokens } from "./polynomial.ts";
import type { PassShape, TimingModel } from "./timing.ts";

/** Measured times of an engine, as profilers write them. All axes strictly increase. */
export interface TimingTable {
  /** Prefill: new tokens of a batch, and its time in ms. */
  readonly prefillTokens: readonly number[];
  readonly prefillMs: readonly number[];
  /** Decode: tokens of all contexts, mean context, and the time of a step in ms, a row for each `decodeActiveTokens`. */
  readonly decodeActiveTokens: readonly number[];
  readonly decodeContextTokens: readonly number[];
  readonly decodeMs: readonly (readonly number[])[];
}

/** Shortest pass: extrapolation must not make time stand still. */
const floorMs = 1;

/** Interpolates a table: linear for prefill, bilinear for decode; beyond its edges the last slopes go on, down to 1 ms. */
export function tableTiming(table: TimingTable): TimingModel {
  checkAxis("prefillTokens", table.prefillTokens);
  checkAxis("decodeActiveTokens", table.decodeActiveTokens);
  checkAxis("decodeContextTokens", table.decodeContextTokens);
  checkLength("prefillMs", table.prefillMs, table.prefillTokens.length);
  checkLength("decodeMs", table.decodeMs, table.decodeActiveTokens.length);
  for (const row of table.decodeMs) checkLength("decodeMs", row, table.decodeContextTokens.length);
  return {
    passMs(pass: Readonly<PassShape>): number {
      const prefill = pass.prefillTokens === 0 ? 0 : prefillMs(table, pass.prefillTokens);
      return prefill + (givesTokens(pass) ? decodeMs(table, pass) : 0);
    },
  };
}

function prefillMs(table: TimingTable, tokens: number): number {
  const at = placeOf(table.prefillTokens, tokens);
  return Math.max(floorMs, between(table.prefillMs, at));
}

function decodeMs(table: TimingTable, pass: Readonly<PassShape>): number {
  const context = pass.decodeContextTokens + pass.prefillPastTokens + pass.prefillTokens;
  const requests = pass.decodeRequests + pass.prefillRequests;
  const active = placeOf(table.decodeActiveTokens, context);
  const mean = placeOf(table.decodeContextTokens, context / requests);
  const low = between(table.decodeMs[active.index]!, mean);
  if (active.part === 0) return Math.max(floorMs, low);
  const high = between(table.decodeMs[active.index + 1]!, mean);
  return Math.max(floorMs, low + active.part * (high - low));
}

/** Between which neighbours a value lies, and how far: below 0 and above 1 outside of the axis. */
interface Place {
  readonly index: number;
  readonly part: number;
}

function placeOf(axis: readonly number[], value: number): Place {
  if (axis.length === 1) return { index: 0, part: 0 };
  let low = 0;
  let high = axis.length - 2;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (axis[middle]! <= value) low = middle;
    else high = middle - 1;
  }
  return { index: low, part: (value - axis[low]!) / (axis[low + 1]! - axis[low]!) };
}

function between(values: readonly number[], { index, part }: Place): number {
  const low = values[index]!;
  return part === 0 ? low : low + part * (values[index + 1]! - low);
}

function checkAxis(name: string, axis: readonly number[]): void {
  const increases = axis.every((value, at) => Number.isFinite(value) && (at === 0 || value > axis[at - 1]!));
  if (axis.length === 0 || !increases) refuse(name, "must be numbers that increase");
}

function checkLength(name: string, values: readonly unknown[], length: number): void {
  if (values.length !== length) refuse(name, `must have ${length} entries, as its axis has`);
}

function refuse(name: string, problem: string): never {
  throw new StatorError("invalid_value", `Timing table: ${name} ${problem}`, { param: name });
}

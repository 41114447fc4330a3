import type { Distribution } from "./distribution.ts";

const columns = ["mean", "p50", "p75", "p90", "p95", "p99", "max"] as const;
const NAME_WIDTH = 22;

/** Lines for a person: a header with the unit, and one for each distribution that has values. */
export function distributionTable(unit: string, rows: Readonly<Record<string, Distribution | null>>): string[] {
  const lines = [tableRow(unit, columns)];
  for (const [name, values] of Object.entries(rows)) {
    if (values === null) continue;
    lines.push(
      tableRow(
        name,
        columns.map((column) => shortNumber(values[column])),
      ),
    );
  }
  return lines;
}

/** Cells of ten characters, aligned to the right, after a name. */
export function tableRow(name: string, cells: readonly string[], width = 10): string {
  return `${name.padEnd(NAME_WIDTH)} ${cells.map((text) => text.padStart(width)).join("")}`;
}

/** A name and what is said of it. */
export function factRow(name: string, value: string): string {
  return `${name.padEnd(NAME_WIDTH)} ${value}`;
}

/** Two decimals for what is below 100. */
export function shortNumber(value: number): string {
  return value.toFixed(Math.abs(value) < 100 ? 2 : 0);
}

/** Of a ratio: `12.3 %`. */
export function percent(ratio: number): string {
  return `${(ratio * 100).toFixed(1)} %`;
}

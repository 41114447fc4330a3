import { type Config, shownValue } from "../config/config.ts";

/** Each key, its value, and where the value came from. */
export function printConfig(config: Config, json: boolean): void {
  const rows = config.entries().map(({ name, value, source }) => {
    return { key: name, value: shownValue(name, value), source };
  });
  if (json) {
    process.stdout.write(`${JSON.stringify(rows, undefined, 2)}\n`);
    return;
  }
  const width = Math.max(...rows.map(({ key }) => key.length));
  for (const { key, value, source } of rows) {
    process.stdout.write(`${key.padEnd(width)}  ${JSON.stringify(value).padEnd(28)}  ${source}\n`);
  }
}

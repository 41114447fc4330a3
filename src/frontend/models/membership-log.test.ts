import type { Logger } from "pino";
import { expect, test } from "vitest";
import { MembershipLog } from "./membership-log.ts";

test("a few workers have a line each; of thousands at once the rest is told in one", () => {
  const lines: string[] = [];
  const log = new MembershipLog({
    info: (fields: object, text: string) => lines.push(`${text} ${JSON.stringify(fields)}`),
  } as unknown as Logger);
  for (let i = 0; i < 2_000; i++) log.joined({ workerId: `w${i}`, model: "m", address: "a" });
  log.left({ workerId: "w7", model: "m" });
  log.close();
  expect(lines[0]).toBe('worker joined {"workerId":"w0","model":"m","address":"a"}');
  expect(lines.slice(-2)).toEqual([
    'worker left {"workerId":"w7","model":"m"}',
    'further workers joined {"workers":1980}',
  ]);
  expect(lines.length).toBe(22);
});

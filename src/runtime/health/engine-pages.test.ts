import { expect, test } from "vitest";
import { EnginePages, type Hosted } from "./engine-pages.ts";

const host = (name: string): Hosted => ({ record: undefined, adminActions: new Map([["loads", () => name]]) });

test("one engine: its actions by name, and an error that lists them", () => {
  const pages = new EnginePages();
  expect(() => pages.find("/engine/loads")).toThrow("there are: none");
  pages.show(host("one"));
  expect(pages.find("/engine/loads")!(undefined, AbortSignal.abort())).toBe("one");
  expect(() => pages.find("/engine/nope")).toThrow("no /engine/nope; there are: /engine/loads.");
  expect(pages.find("/metrics")).toBeUndefined();
});

test("several engines: by worker id, as they are now, and errors that stay short", () => {
  const hosts = new Map(Array.from({ length: 1_000 }, (_, i) => [`w-${i}`, host(`engine ${i}`)]));
  const pages = new EnginePages();
  pages.show(hosts);
  const ask = (path: string): unknown => pages.find(path)!(undefined, AbortSignal.abort());
  expect(ask("/engine/w-7/loads")).toBe("engine 7");
  hosts.set("w-7", host("its successor"));
  expect(ask("/engine/w-7/loads")).toBe("its successor");
  expect(() => ask("/engine/w-7")).toThrow("no /engine/w-7; there are: /engine/w-7/loads.");
  expect(() => ask("/engine/w-7/nope")).toThrow("there are: /engine/w-7/loads.");
  expect(() => ask("/engine/loads")).toThrow(/\/engine\/w-0\/loads, .*\/engine\/w-4\/loads, \.\.\. \(1000 workers\)\./);
});

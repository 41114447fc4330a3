import { expect, test, vi } from "vitest";

vi.mock("node-llama-cpp", () => {
  throw new Error("loaded");
});

test("the optional node-llama-cpp is loaded when an engine is made, not when this folder is imported", async () => {
  const { createLlamaEngine, EchoEngine } = await import("./index.ts");
  expect(EchoEngine).toBeTypeOf("function");
  const { builtinModel } = await import("./llama/testing.contract.ts");
  const made = createLlamaEngine({ modelPath: builtinModel, name: "x" }, AbortSignal.timeout(10_000));
  await expect(made).rejects.toMatchObject({ code: "not_ready", message: expect.stringContaining("node-llama-cpp") });
});

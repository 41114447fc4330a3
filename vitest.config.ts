import { defineConfig } from "vitest/config";

const full = process.env.STATOR_TEST_FULL === "1";

export default defineConfig({
  test: {
    include: ["src/**/*.test.ts", "tests/**/*.test.ts", ...(full ? ["tests/**/*.full.ts"] : [])],
    pool: "forks",
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    reporters: full || process.env.CI ? ["default", "./tools/count-reporter.mjs"] : ["default"],
  },
});

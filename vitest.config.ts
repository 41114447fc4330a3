import { defineConfig } from "vitest/config";

const full = process.env.STATOR_TEST_FULL === "1";

export default defineConfig({
  test: {
    pool: "forks",
    testTimeout: 30_000,
    hookTimeout: 60_000,
    reporters: full || process.env.CI ? ["default", "./tools/count-reporter.mjs"] : ["default"],
    projects: [
      {
        extends: true,
        test: {
          name: "together",
          include: ["src/**/*.test.ts", "tests/**/*.test.ts", ...(full ? ["tests/**/*.full.ts"] : [])],
          exclude: ["tests/alone/**"],
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
      // What measures time, CPU or memory would measure its neighbours, too: after all others, one file at a time.
      {
        extends: true,
        test: {
          name: "alone",
          include: full ? ["tests/alone/**/*.full.ts"] : [],
          maxWorkers: 1,
          sequence: { groupOrder: 1 },
        },
      },
    ],
  },
});

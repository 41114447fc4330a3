import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), "utf8");

describe("the docs", () => {
  it("list every configuration key and every error as the code has them", () => {
    const { status, stderr } = spawnSync(process.execPath, ["tools/generate-docs.mjs", "--check"], {
      encoding: "utf8",
    });
    expect(stderr).toBe("");
    expect(status).toBe(0);
  });

  it("have no dead link to a file or a heading", () => {
    const pages = [
      "README.md",
      "CONTRIBUTING.md",
      ...readdirSync(new URL("../docs", import.meta.url)).map((name) => `docs/${name}`),
    ].filter((path) => path.endsWith(".md"));
    for (const page of pages) {
      const folder = page.includes("/") ? "docs/" : "";
      for (const [, target, heading] of read(page).matchAll(/\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)/g)) {
        const path = target === "" ? page : folder + target;
        const text = read(path!);
        if (heading === undefined) continue;
        const anchors = [...text.matchAll(/^#+ (.+)$/gm)].map(
          ([, title]) =>
            `#${title!
              .toLowerCase()
              .replace(/[^\w\- ]/g, "")
              .replaceAll(" ", "-")}`,
        );
        expect(anchors, `${page} -> ${target}${heading}`).toContain(heading);
      }
    }
  });
});

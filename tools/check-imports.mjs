// Checks the import rule of docs/architecture.md: a folder of src/ imports only from folders below it.
// Plain Node, no dependencies. Looks at static, type, dynamic imports and `new URL("...", import.meta.url)`.
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

const order = [
  "cli",
  "loadgen",
  "simulator",
  "frontend",
  "engines",
  "mocker",
  "router",
  "runtime",
  "model-files",
  "traces",
  "protocol",
];
const pure = { protocol: ["node:crypto"], router: [], simulator: [], mocker: [], traces: [] }; // folders without I/O: the only built-ins they may use

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..", "src");
const importPattern = /(?:\bfrom\s*|\bimport\s*\(?\s*|\bnew URL\(\s*)["']([^"']+)["']/g;
const problems = [];

for (const file of readdirSync(root, { recursive: true, withFileTypes: true })) {
  if (!file.isFile() || !/\.tsx?$/.test(file.name)) continue;
  const path = join(file.parentPath ?? file.path, file.name);
  const [folder] = relative(root, path).split(sep);
  const rank = order.indexOf(folder);
  if (rank < 0) {
    problems.push(`${relative(root, path)}: folder src/${folder} is not in the list in tools/check-imports.mjs`);
    continue;
  }
  const isTest = /\.(test|contract)\.ts$/.test(file.name);
  for (const [, target] of readFileSync(path, "utf8").matchAll(importPattern)) {
    if (target.startsWith("node:") && pure[folder] && !isTest && !pure[folder].includes(target)) {
      problems.push(`${relative(root, path)}: src/${folder} is pure and must not import ${target}`);
    }
    if (!target.startsWith(".")) continue;
    const [targetFolder] = relative(root, resolve(dirname(path), target)).split(sep);
    if (targetFolder === "..") continue; // models/, package.json
    const targetRank = order.indexOf(targetFolder);
    if (targetRank >= 0 && targetRank < rank) {
      problems.push(`${relative(root, path)}: src/${folder} must not import from src/${targetFolder} (${target})`);
    }
  }
}

for (const problem of problems) console.error(problem);
if (problems.length > 0) process.exit(1);

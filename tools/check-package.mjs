// Packs the project, installs the tarball into an empty folder as a user would, and tries it there: the command runs,
// the size is right, a missing optional engine gives a clear message, and the echo engine serves.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const MAX_TARBALL_BYTES = 30 * 1024 * 1024;
const root = resolve(fileURLToPath(import.meta.url), "../..");
const folder = mkdtempSync(join(tmpdir(), "stator-package-"));

try {
  npm(root, true, "pack", "--silent", "--pack-destination", folder);
  const tarball = join(
    folder,
    readdirSync(folder).find((name) => name.endsWith(".tgz")),
  );
  const bytes = statSync(tarball).size;
  check(bytes < MAX_TARBALL_BYTES, `the tarball has ${bytes} bytes`);

  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "user", private: true, type: "module" }));
  npm(folder, true, "install", "--silent", "--no-audit", "--no-fund", "--omit=dev", tarball);
  const { version } = JSON.parse(
    run(root, process.execPath, ["-p", "JSON.stringify(require('./package.json'))"]).stdout,
  );
  check(npx("--version").stdout.trim() === version, "npx stator --version prints the version");
  check(npx("--help").stdout.includes("serve"), "npx stator --help names serve");

  const missing = npx("worker", "--discovery", `file:${join(folder, "run")}`);
  check(missing.status !== 0, "a worker without the optional engine fails");
  check(/npm install node-llama-cpp/.test(missing.stderr), `the message says what to install: ${missing.stderr}`);
  check(!/\n\s+at /.test(missing.stderr), `the message has no stack: ${missing.stderr}`);

  const library =
    "import { Router } from 'stator/router'; import { seededRandom } from 'stator/protocol'; console.log(new Router('random', seededRandom(1)).select(['a'], { model: 'm', promptTokens: 1 }).workerId)";
  check(
    run(folder, process.execPath, ["--input-type=module", "-e", library]).stdout.trim() === "a",
    "the library entry points import",
  );

  await serveEcho();
  console.log(`package: ${(bytes / 1e6).toFixed(2)} MB, ${version}, installs and runs`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}

async function serveEcho() {
  const bin = join(folder, "node_modules/stator/dist/cli/main.js");
  const server = spawn(process.execPath, [bin, "serve", "--engine", "echo", "--workers", "1", "--port", "0"], {
    cwd: folder,
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    const url = await new Promise((resolvePrinted, reject) => {
      let printed = "";
      const timer = setTimeout(() => reject(new Error(`serve printed no URL in 30 s: ${printed}`)), 30_000);
      server.stdout.on("data", (data) => {
        printed += data;
        const found = /URL\s+(http:\S+)\/v1/.exec(printed)?.[1];
        if (!found) return;
        clearTimeout(timer);
        resolvePrinted(found);
      });
    });
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "stator-echo", messages: [{ role: "user", content: "hi" }], max_tokens: 4 }),
    });
    check(response.status === 200, `the installed server answers a chat (${response.status})`);
  } finally {
    server.kill("SIGTERM");
    await new Promise((ended) => server.once("exit", ended));
  }
}

function npx(...args) {
  return npm(folder, false, "exec", "--no", "--", "stator", ...args);
}

function npm(cwd, required, ...args) {
  const path = process.env.npm_execpath;
  return path && /\.c?js$/.test(path)
    ? run(cwd, process.execPath, [path, ...args], required)
    : run(cwd, "npm", args, required);
}

function run(cwd, command, args, required = true) {
  const result = spawnSync(command, args, {
    cwd,
    encoding: "utf8",
    timeout: 300_000,
    env: { ...process.env, npm_config_loglevel: "error" },
  });
  if (required)
    check(result.status === 0, `${command} ${args.slice(0, 4).join(" ")}: ${result.stderr || result.error}`);
  return result;
}

function check(condition, what) {
  if (!condition) throw new Error(`packaging: not true: ${what}`);
}

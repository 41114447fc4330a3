// Brings the real servers of the full tests, etcd, nats-server and faketime, out of Debian's packages into
// .cache/servers. Nothing is installed into the system, and only a missing package list needs root.
//
//   node tools/fetch-servers.mjs
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const packages = ["etcd-server", "nats-server", "faketime", "libfaketime"];
const files = ["usr/bin/etcd", "usr/sbin/nats-server", "usr/bin/faketime"];

const cache = join(resolve(dirname(fileURLToPath(import.meta.url)), ".."), ".cache");
const target = join(cache, "servers");

if (!files.every((file) => existsSync(join(target, file)))) fetchServers();
console.log(target);

function fetchServers() {
  mkdirSync(cache, { recursive: true });
  const work = mkdtempSync(join(cache, "fetch-"));
  try {
    if (!download(work)) {
      run("apt-get", ["update", "-q"], work);
      if (!download(work)) fail(`apt-get download ${packages.join(" ")} failed. The full tests need Debian or Ubuntu.`);
    }
    for (const name of readdirSync(work).filter((name) => name.endsWith(".deb"))) {
      const { status } = run("dpkg-deb", ["-x", name, "unpacked"], work);
      if (status !== 0) fail(`dpkg-deb cannot unpack ${name}.`);
    }
    for (const file of files) if (!existsSync(join(work, "unpacked", file))) fail(`The packages hold no ${file}.`);
    rmSync(target, { recursive: true, force: true });
    renameSync(join(work, "unpacked"), target); // at once: a run that is stopped leaves no half folder behind
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function download(work) {
  return run("apt-get", ["download", "-q", ...packages], work).status === 0;
}

function run(command, argv, cwd) {
  return spawnSync(command, argv, { cwd, stdio: ["ignore", 2, 2] });
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

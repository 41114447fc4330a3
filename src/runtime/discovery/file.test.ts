import { type ChildProcess, spawn } from "node:child_process";
import { chmod, mkdtemp, readdir, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { InstanceRecord } from "../../protocol/instance.ts";
import { discoveryContract, RecordingListener, sampleRecord } from "./discovery.contract.ts";
import { FileDiscovery, type FileDiscoveryOptions } from "./file.ts";
import { fileNameOf, touchInstanceFile, writeInstanceFile } from "./instance-file.ts";
import { MemoryDiscovery, MemoryStore } from "./memory.ts";
import { identityOf } from "./process-identity.ts";

const toClean: (() => unknown)[] = [];
afterAll(async () => {
  for (const clean of toClean.splice(0).reverse()) await clean();
});

async function newFolder(): Promise<string> {
  const parent = await mkdtemp(join(tmpdir(), "stator-discovery-"));
  toClean.push(() => rm(parent, { recursive: true, force: true }));
  return join(parent, "workers");
}

function open(folder: string, options: Partial<FileDiscoveryOptions> = {}): FileDiscovery {
  const discovery = new FileDiscovery({ folder, heartbeatMs: 40, pollMs: 25, ...options });
  toClean.push(() => discovery.close());
  return discovery;
}

function watched(discovery: FileDiscovery): RecordingListener {
  const listener = new RecordingListener();
  discovery.watch({}, listener);
  return listener;
}

/** A process that stays until it is killed. */
function sleeper(): ChildProcess {
  const child = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"], { stdio: "ignore" });
  toClean.push(() => child.kill("SIGKILL"));
  return child;
}

discoveryContract("memory discovery", async () => {
  const store = new MemoryStore();
  return () => new MemoryDiscovery(store);
});

discoveryContract("file discovery", async () => {
  const folder = await newFolder();
  return () => open(folder);
});

discoveryContract("file discovery that hears of changes by fs.watch alone", async () => {
  const folder = await newFolder();
  return () => open(folder, { pollMs: 60_000, heartbeatMs: 60_000 });
});

test("the folder and its files are for this user only, and empty after the release", async () => {
  const folder = await newFolder();
  const discovery = open(folder);
  const lease = await discovery.register(sampleRecord("a"));
  expect((await stat(folder)).mode & 0o777).toBe(0o700);
  expect(await readdir(folder)).toEqual(["default+worker+a.json"]);
  expect((await stat(join(folder, "default+worker+a.json"))).mode & 0o777).toBe(0o600);
  await lease.release();
  expect(await readdir(folder)).toEqual([]);
});

test("a registration that a close overtakes leaves nothing behind", async () => {
  const folder = await newFolder();
  const discovery = open(folder);
  const registering = discovery.register(sampleRecord("a"));
  const closed = discovery.close();
  await expect(registering).rejects.toThrow("closed");
  await closed;
  expect(await readdir(folder)).toEqual([]);
});

test("an update that could not be written is written by a later heartbeat", async () => {
  const folder = await newFolder();
  const lease = await open(folder, { heartbeatMs: 20 }).register(sampleRecord("a"));
  const listener = watched(open(folder));
  await listener.until(() => listener.picture.has("a"));
  await chmod(folder, 0o777);
  await expect(lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"))).rejects.toMatchObject({
    code: "invalid_value",
  });
  await chmod(folder, 0o700);
  await listener.until(() => listener.picture.get("a")?.address === "tcp://127.0.0.1:99");
});

test("a process that has lost its place to another one takes it again when that one goes", async () => {
  const folder = await newFolder();
  const lease = await open(folder, { heartbeatMs: 20 }).register(sampleRecord("a", "e1"));
  const listener = watched(open(folder));
  const other = await open(folder).register(sampleRecord("a", "e2"));
  await listener.until(() => listener.picture.get("a")?.epoch === "e2");
  await lease.update(sampleRecord("a", "e1", "tcp://127.0.0.1:99"));
  await open(folder).register(sampleRecord("b"));
  await listener.until(() => listener.picture.has("b"));
  expect(listener.picture.get("a")?.epoch).toBe("e2");
  await other.release();
  await listener.until(() => listener.picture.get("a")?.address === "tcp://127.0.0.1:99");
});

test("a folder that others may write into is refused", async () => {
  const folder = await newFolder();
  const lease = await open(folder).register(sampleRecord("a"));
  await lease.release();
  await chmod(folder, 0o777);
  await expect(open(folder).register(sampleRecord("a"))).rejects.toMatchObject({ code: "invalid_value" });
  const listener = watched(open(folder));
  await listener.until(() => listener.events.includes("trouble"));
});

test("a worker whose process dies is gone at once, long before its file expires, and its file is swept", async () => {
  const folder = await newFolder();
  const discovery = open(folder);
  const listener = watched(discovery);
  await listener.untilEvents(["synced"]);
  const child = sleeper();
  await writeInstanceFile(folder, { record: sampleRecord("child"), process: identityOf(child.pid!) });
  await listener.until(() => listener.picture.has("child"));
  child.kill("SIGKILL");
  const began = performance.now();
  await listener.until(() => !listener.picture.has("child"));
  expect(performance.now() - began).toBeLessThan(5000);
  await listener.until(() => listener.events.at(-1) === "removed child e1");
  const end = performance.now() + 5000;
  while ((await readdir(folder)).includes("default+worker+child.json")) {
    if (performance.now() > end) throw new Error("the file of the dead worker is still there");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
});

test("a pid that belongs to another process by now does not keep a worker alive", async () => {
  const folder = await newFolder();
  const child = sleeper();
  const listener = watched(open(folder));
  await listener.untilEvents(["synced"]);
  await writeInstanceFile(folder, {
    record: sampleRecord("ghost"),
    process: { ...identityOf(child.pid!), startedAt: "1" },
  });
  await writeInstanceFile(folder, { record: sampleRecord("real"), process: identityOf(child.pid!) });
  await listener.until(() => listener.picture.has("real"));
  expect(listener.picture.has("ghost")).toBe(false);
});

test("a file that nobody renews expires, comes back when it is renewed, and is not shown when it is old at first sight", async () => {
  const folder = await newFolder();
  const elsewhere = { pid: 1, machine: "another machine", startedAt: "" };
  const listener = watched(open(folder, { expiryMs: 150 }));
  await listener.untilEvents(["synced"]);
  await writeInstanceFile(folder, { record: sampleRecord("far"), process: elsewhere });
  await listener.untilEvents(["synced", "upsert far e1", "removed far e1"]);
  await writeInstanceFile(folder, { record: sampleRecord("far", "e2"), process: elsewhere });
  await listener.until(() => listener.picture.get("far")?.epoch === "e2");
  await utimes(join(folder, fileNameOf("default/worker/far")), new Date(1e9), new Date(1e9));
  const late = watched(open(folder));
  await late.untilEvents(["synced"]);
});

test("a heartbeat keeps a worker alive beyond the expiry", async () => {
  const folder = await newFolder();
  const listener = watched(open(folder, { expiryMs: 400 }));
  await open(folder).register(sampleRecord("a"));
  await listener.until(() => listener.picture.has("a"));
  await new Promise((resolve) => setTimeout(resolve, 900)); // more than two expiry times: the absence of an event needs time
  expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
});

test("a worker whose file vanished registers again", async () => {
  const folder = await newFolder();
  const listener = watched(open(folder));
  await open(folder).register(sampleRecord("a"));
  await listener.until(() => listener.picture.has("a"));
  await rm(join(folder, "default+worker+a.json"));
  await listener.until(() => listener.events.includes("removed a e1"));
  await listener.until(() => listener.picture.has("a"));
});

test("a vanished folder freezes the picture; it comes back with its workers, and nobody was removed meanwhile", async () => {
  const folder = await newFolder();
  const viewer = open(folder);
  const listener = watched(viewer);
  const child = sleeper();
  await listener.untilEvents(["synced"]);
  // Nobody renews these two: only the folder itself can bring them back.
  for (const id of ["a", "b"])
    await writeInstanceFile(folder, { record: sampleRecord(id), process: identityOf(child.pid!) });
  await listener.until(() => listener.picture.size === 2);
  await rename(folder, `${folder}.away`);
  await listener.until(() => listener.events.at(-1) === "trouble");
  expect(listener.picture.size).toBe(2);
  await rename(`${folder}.away`, folder);
  await listener.until(() => listener.events.at(-1) === "trouble over");
  await open(folder).register(sampleRecord("c"));
  await listener.until(() => listener.picture.has("c"));
  expect(listener.events.filter((event) => event.startsWith("removed"))).toEqual([]);
  // Gone for good: the owner makes folder and file anew.
  await rm(folder, { recursive: true });
  await listener.until(
    () => listener.events.filter((event) => event === "trouble over").length === 2 || listener.picture.has("c"),
  );
  const end = performance.now() + 5000;
  while (!(await readdir(folder).catch((): string[] => [])).includes("default+worker+c.json")) {
    if (performance.now() > end) throw new Error("the owner did not register again");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  expect(listener.picture.has("c")).toBe(true);
});

test("old instance files and left-over temporary files are swept, other people's files never", async () => {
  const folder = await newFolder();
  await (await open(folder).register(sampleRecord("x"))).release();
  const elsewhere = { pid: 1, machine: "another machine", startedAt: "" };
  await writeInstanceFile(folder, { record: sampleRecord("old"), process: elsewhere });
  for (const name of [".stator-left-over", "package.json", "notes.txt"]) await writeFile(join(folder, name), "{}");
  for (const name of await readdir(folder)) await utimes(join(folder, name), new Date(1e9), new Date(1e9));
  const listener = watched(open(folder));
  await listener.until(() => listener.events.includes("synced"));
  expect((await readdir(folder)).filter((name) => !name.startsWith(".")).sort()).toEqual(["notes.txt", "package.json"]);
  expect(await readdir(folder)).not.toContain(".stator-left-over");
  expect(listener.events).toEqual(["synced"]);
});

test("corrupt, half-written, oversized and foreign files are skipped and logged", async () => {
  const folder = await newFolder();
  const warned: string[] = [];
  const logger = { warn: (fields: { file: string }) => warned.push(fields.file), debug() {} };
  const discovery = open(folder, { logger: logger as never });
  const listener = watched(discovery);
  await discovery.register(sampleRecord("good"));
  const whole = JSON.stringify({ version: 1, record: sampleRecord("other"), process: identityOf(process.pid) });
  const bad: Record<string, string> = {
    "empty.json": "",
    "half.json": whole.slice(0, 200),
    "list.json": "[]",
    "null.json": "null",
    "renamed.json": whole,
    "version.json": whole.replace('"version":1', '"version":2'),
    "huge.json": `"${"x".repeat(1024 * 1024)}"`,
    "binary.json": "\u0000\ufffd",
  };
  for (const [name, text] of Object.entries(bad)) await writeFile(join(folder, name), text);
  await writeFile(join(folder, "README"), "not ours");
  await listener.until(() => new Set(warned).size === Object.keys(bad).length);
  await discovery.register(sampleRecord("second"));
  await listener.until(() => listener.picture.has("second"));
  expect([...listener.picture.keys()].sort()).toEqual(["good", "second"]);
  expect(listener.events.includes("trouble")).toBe(false);
});

test("records that would break headers, logs or the reading of text are skipped, and their owners are told", async () => {
  const folder = await newFolder();
  const warned: string[] = [];
  const logger = { warn: (fields: { file: string }) => warned.push(fields.file), debug() {} };
  const discovery = open(folder, { logger: logger as never });
  const listener = watched(discovery);
  await discovery.register(sampleRecord("good"));
  const good = sampleRecord("w");
  const card = (more: object): object => ({ ...good, card: { ...good.card, ...more } });
  const bad: readonly object[] = [
    ...["a\nb", "a b", "\u00e9", "-a", "", "x".repeat(129)].map((workerId) => ({ ...good, workerId })),
    ...["e\r\nX: 1", "", "\u0000"].map((epoch) => ({ ...good, workerId: "bad-epoch", epoch })),
    ...["a\u0007", "", "x".repeat(513), "a\u202eb"].map((name) => card({ name })),
    card({ aliases: ["fine", "a\nb"] }),
    ...[{ kind: "other" }, { kind: "huggingface" }, { kind: "huggingface", path: 3 }, "bytes"].map((tokenizer) =>
      card({ tokenizer }),
    ),
  ];
  for (const record of bad) {
    const name = fileNameOf(`default/worker/${(record as InstanceRecord).workerId}`);
    const before = warned.length;
    await writeFile(join(folder, name), JSON.stringify({ version: 1, record, process: identityOf(process.pid) }));
    await listener.until(() => warned.length > before);
    expect(warned.at(-1)).toContain(name);
    await rm(join(folder, name));
    await expect(discovery.register(record as InstanceRecord)).rejects.toMatchObject({ code: "invalid_value" });
  }
  await discovery.register(card({ tokenizer: { kind: "huggingface", path: "tokenizer.json" } }) as InstanceRecord);
  await listener.until(() => listener.picture.has("w"));
  expect([...listener.picture.keys()].sort()).toEqual(["good", "w"]);
});

test("files of one beat stay as long as one of them is renewed, and go together", async () => {
  const folder = await newFolder();
  const listener = watched(open(folder, { expiryMs: 1_500 }));
  await listener.untilEvents(["synced"]);
  const [renewed, other] = [sampleRecord("a"), sampleRecord("b")];
  const self = identityOf(process.pid);
  const inode = await writeInstanceFile(folder, { record: renewed, process: self, beat: "x" });
  await writeInstanceFile(folder, { record: other, process: self, beat: "x" });
  await writeInstanceFile(folder, { record: sampleRecord("alone"), process: self, beat: "y" });
  await listener.until(() => listener.picture.size === 3);
  const path = join(folder, fileNameOf("default/worker/a"));
  const beat = setInterval(() => void touchInstanceFile(path, inode), 20);
  await listener.until(() => !listener.picture.has("alone"));
  clearInterval(beat);
  expect([...listener.picture.keys()].sort()).toEqual(["a", "b"]);
  await listener.until(() => listener.picture.size === 0);
});

test("a file that cannot be read any more expires, though others of its beat are renewed", async () => {
  const folder = await newFolder();
  const listener = watched(open(folder, { expiryMs: 1_500 }));
  await listener.untilEvents(["synced"]);
  const [renewed, spoiled] = [sampleRecord("a"), sampleRecord("b")];
  const self = identityOf(process.pid);
  const inode = await writeInstanceFile(folder, { record: renewed, process: self, beat: "x" });
  await writeInstanceFile(folder, { record: spoiled, process: self, beat: "x" });
  await listener.until(() => listener.picture.size === 2);
  const beat = setInterval(() => void touchInstanceFile(join(folder, fileNameOf("default/worker/a")), inode), 20);
  await writeFile(join(folder, fileNameOf("default/worker/b")), "{}");
  await listener.until(() => !listener.picture.has("b"));
  expect([...listener.picture.keys()]).toEqual(["a"]);
  clearInterval(beat);
});

test("of many files each beat renews a part, and all get their turn", async () => {
  const folder = await newFolder();
  const discovery = open(folder);
  const count = 60;
  for (let i = 0; i < count; i++) await discovery.register(sampleRecord(`w${i}`));
  const names = await readdir(folder);
  const timesOf = () => Promise.all(names.map(async (name) => (await stat(join(folder, name))).mtimeMs));
  const before = await timesOf();
  const isRenewed = async () => (await timesOf()).every((ms, i) => ms > before[i]!);
  for (const end = performance.now() + 10_000; !(await isRenewed()); ) expect(performance.now()).toBeLessThan(end);
});

test("many files come back with one beat when somebody empties the folder", async () => {
  const folder = await newFolder();
  const count = 100;
  const discovery = open(folder, { heartbeatMs: 3_000 }); // in turns it would take seven beats
  for (let i = 0; i < count; i++) await discovery.register(sampleRecord(`w${i}`));
  for (const name of await readdir(folder)) await rm(join(folder, name));
  const listener = watched(open(folder));
  await listener.until(() => listener.picture.size === count);
});

test("a file that replaces another one of the same size is read, also when it gets its inode", async () => {
  const folder = await newFolder();
  const listener = watched(open(folder));
  await listener.untilEvents(["synced"]);
  for (let i = 10; i < 40; i++) {
    const record = sampleRecord("a", `e${i}`);
    await rm(join(folder, fileNameOf("default/worker/a")), { force: true });
    await writeInstanceFile(folder, { record, process: identityOf(process.pid) });
    await listener.until(() => listener.picture.get("a")?.epoch === `e${i}`);
  }
});

test("closing leaves no timers and no watches", async () => {
  const folder = await newFolder();
  const count = (): number => process.getActiveResourcesInfo().filter((it) => /Timeout|FSEvent/i.test(it)).length;
  const before = count();
  for (let i = 0; i < 5; i++) {
    const discovery = new FileDiscovery({ folder });
    const listener = watched(discovery);
    await discovery.register(sampleRecord("a"));
    await listener.until(() => listener.picture.has("a"));
    await discovery.close();
  }
  expect(count()).toBeLessThanOrEqual(before);
  expect(await readdir(folder)).toEqual([]);
});

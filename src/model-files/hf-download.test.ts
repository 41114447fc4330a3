import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { StatorError } from "../protocol/index.ts";
import { type DownloadProgress, downloadFile, type HfDownloadOptions, resolveModel } from "./index.ts";

const commit = "0123456789abcdef0123456789abcdef01234567";
const builtin = readFileSync(new URL("../../models/builtin.gguf", import.meta.url));
const wanted = { repo: "org/name", revision: "main", file: "model.gguf" };

/** A hub with one repository, whose files are served by a second origin, as the real one does. */
class FakeHub {
  readonly files = new Map<string, Buffer>([["model.gguf", builtin]]);
  readonly requests: {
    origin: "hub" | "store";
    method: string;
    path: string;
    token: string | undefined;
    range: string | undefined;
  }[] = [];
  /** Answers instead of the normal one; removed when used. */
  readonly disturbances: ((response: ServerResponse, request: IncomingMessage) => void)[] = [];
  storeDisturbances: ((response: ServerResponse, bytes: Buffer, start: number) => boolean)[] = [];
  ignoresRange = false;
  redirectTo: string | undefined;
  private readonly hub: Server;
  private readonly store: Server;

  constructor() {
    this.hub = createServer((request, response) => this.answer(request, response));
    this.store = createServer((request, response) => this.serve(request, response));
  }

  async start(): Promise<void> {
    await Promise.all(
      [this.hub, this.store].map((server) => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))),
    );
  }

  stop(): Promise<unknown> {
    return Promise.all(
      [this.hub, this.store].map((server) => {
        server.closeAllConnections();
        return new Promise((resolve) => server.close(resolve));
      }),
    );
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.hub.address() as AddressInfo).port}`;
  }

  private note(origin: "hub" | "store", request: IncomingMessage): void {
    const { authorization, range } = request.headers;
    this.requests.push({ origin, method: request.method!, path: request.url!, token: authorization, range });
  }

  private answer(request: IncomingMessage, response: ServerResponse): void {
    this.note("hub", request);
    const disturb = this.disturbances.shift();
    if (disturb !== undefined) {
      disturb(response, request);
      return;
    }
    const { pathname } = new URL(request.url!, "http://hub");
    if (pathname === "/api/models/org/name/revision/main") {
      response.end(
        JSON.stringify({ sha: commit, siblings: [...this.files.keys()].map((rfilename) => ({ rfilename })) }),
      );
      return;
    }
    const name = decodeURIComponent(pathname.replace("/org/name/resolve/main/", ""));
    const bytes = this.files.get(name);
    if (bytes === undefined) return void response.writeHead(404).end();
    const port = (this.store.address() as AddressInfo).port;
    response.writeHead(302, {
      location: this.redirectTo ?? `http://localhost:${port}/${name}`,
      "x-repo-commit": commit,
      "x-linked-etag": `"${createHash("sha256").update(bytes).digest("hex")}"`,
      "x-linked-size": String(bytes.length),
    });
    response.end();
  }

  private serve(request: IncomingMessage, response: ServerResponse): void {
    this.note("store", request);
    const bytes = this.files.get(request.url!.slice(1))!;
    const start = this.ignoresRange ? 0 : Number(/bytes=(\d+)-/.exec(request.headers.range ?? "")?.[1] ?? 0);
    if (this.storeDisturbances.shift()?.(response, bytes, start) === true) return;
    response.writeHead(start > 0 ? 206 : 200, {
      "content-length": bytes.length - start,
      ...(start > 0 ? { "content-range": `bytes ${start}-${bytes.length - 1}/${bytes.length}` } : {}),
    });
    response.end(bytes.subarray(start));
  }
}

let hub: FakeHub;
let cacheDir: string;
let options: HfDownloadOptions;
const signal = AbortSignal.timeout(25_000);

beforeEach(async () => {
  hub = new FakeHub();
  await hub.start();
  cacheDir = mkdtempSync(join(tmpdir(), "stator-hub-"));
  options = { cacheDir, endpoint: hub.endpoint, backoffMs: 1, maxAttempts: 3 };
});

afterEach(async () => {
  await hub.stop();
  rmSync(cacheDir, { recursive: true, force: true });
});

const digest = createHash("sha256").update(builtin).digest("hex");
const folder = (): string => join(cacheDir, "models--org--name");

async function refusal(work: Promise<unknown>): Promise<StatorError> {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(StatorError);
  expect((error as StatorError).code).toBe("model_unavailable");
  return error as StatorError;
}

/** Sends a part, then cuts the connection. */
const cutAfter = (share: number) => (response: ServerResponse, bytes: Buffer, start: number) => {
  const end = start + Math.floor((bytes.length - start) * share);
  response.writeHead(start > 0 ? 206 : 200, {
    "content-length": bytes.length - start,
    ...(start > 0 ? { "content-range": `bytes ${start}-${bytes.length - 1}/${bytes.length}` } : {}),
  });
  response.write(bytes.subarray(start, end), () => response.destroy());
  return true;
};

test("a fresh download has the hub's layout, reports progress, and is not repeated", async () => {
  const progress: DownloadProgress[] = [];
  const path = await downloadFile(wanted, { ...options, onProgress: (step) => progress.push(step) }, signal);
  expect(readFileSync(path).equals(builtin)).toBe(true);
  expect(path).toBe(join(folder(), "snapshots", commit, "model.gguf"));
  expect(basename(realpathSync(path))).toBe(digest);
  expect(readFileSync(join(folder(), "refs", "main"), "utf8")).toBe(commit);
  expect(progress.at(-1)).toEqual({ file: "model.gguf", receivedBytes: builtin.length, totalBytes: builtin.length });

  await downloadFile(wanted, options, signal);
  expect(hub.requests.filter(({ origin }) => origin === "store")).toHaveLength(1);
});

test("the token goes to the hub, never to where it redirects", async () => {
  await downloadFile(wanted, { ...options, token: "hf_secret" }, signal);
  expect(hub.requests.filter(({ origin }) => origin === "hub").map(({ token }) => token)).toEqual([
    "Bearer hf_secret",
    "Bearer hf_secret",
  ]);
  expect(hub.requests.filter(({ origin }) => origin === "store").map(({ token }) => token)).toEqual([undefined]);
});

describe("a cut download", () => {
  test("goes on where it was cut", async () => {
    hub.storeDisturbances = [cutAfter(0.5), cutAfter(0.5)];
    const path = await downloadFile(wanted, options, signal);
    expect(readFileSync(path).equals(builtin)).toBe(true);
    const ranges = hub.requests.filter(({ origin }) => origin === "store").map(({ range }) => range);
    expect(ranges[0]).toBeUndefined();
    expect(ranges.slice(1).every((range) => /^bytes=[1-9]\d*-$/.test(range ?? ""))).toBe(true);
  });

  test("goes on in a later process", async () => {
    mkdirSync(join(folder(), "blobs"), { recursive: true });
    writeFileSync(join(folder(), "blobs", `${digest}.incomplete`), builtin.subarray(0, 1000));
    const path = await downloadFile(wanted, options, signal);
    expect(readFileSync(path).equals(builtin)).toBe(true);
    expect(hub.requests.at(-1)).toMatchObject({ origin: "store", range: "bytes=1000-" });
    expect(existsSync(join(folder(), "blobs", `${digest}.incomplete`))).toBe(false);
  });

  test("starts again when the server ignores the range", async () => {
    hub.ignoresRange = true;
    hub.storeDisturbances = [cutAfter(0.5)];
    expect(readFileSync(await downloadFile(wanted, options, signal)).equals(builtin)).toBe(true);
  });

  test("that never gets further is given up", async () => {
    hub.storeDisturbances = Array.from({ length: 10 }, () => cutAfter(0));
    expect((await refusal(downloadFile(wanted, options, signal))).message).toContain("download");
    expect(hub.requests.filter(({ origin }) => origin === "store")).toHaveLength(3);
  });
});

test("a damaged piece of an earlier attempt is found by the checksum and replaced", async () => {
  mkdirSync(join(folder(), "blobs"), { recursive: true });
  writeFileSync(join(folder(), "blobs", `${digest}.incomplete`), Buffer.alloc(1000, 7));
  expect(readFileSync(await downloadFile(wanted, options, signal)).equals(builtin)).toBe(true);
});

test("a wrong checksum is refused and leaves nothing behind", async () => {
  const damaged = (response: ServerResponse, bytes: Buffer): boolean => {
    response.writeHead(200, { "content-length": bytes.length }).end(Buffer.alloc(bytes.length, 1));
    return true;
  };
  hub.storeDisturbances = [damaged, damaged, damaged];
  expect((await refusal(downloadFile(wanted, options, signal))).message).toContain("checksum");
  expect(existsSync(join(folder(), "snapshots"))).toBe(false);
  expect(existsSync(join(folder(), "blobs", `${digest}.incomplete`))).toBe(false);
});

test.each([
  [401, "HF_TOKEN"],
  [403, "HF_TOKEN"],
  [404, "has no org/name/model.gguf at revision main"],
  [418, "418"],
])("status %i is told clearly and not retried", async (status, text) => {
  hub.disturbances.push((response) => response.writeHead(status).end());
  expect((await refusal(downloadFile(wanted, options, signal))).message).toContain(text);
  expect(hub.requests).toHaveLength(1);
});

test("busy and failing answers are retried, up to a limit", async () => {
  hub.disturbances.push(
    (response) => response.writeHead(503).end(),
    (response) => response.destroy(),
  );
  expect(existsSync(await downloadFile(wanted, options, signal))).toBe(true);
  hub.requests.length = 0;
  const fail = (response: ServerResponse): unknown => response.writeHead(429).end();
  hub.disturbances.push(fail, fail, fail);
  await refusal(downloadFile({ ...wanted, file: "other.gguf" }, options, signal));
  expect(hub.requests).toHaveLength(3);
});

test("endless redirects and strange schemes are refused", async () => {
  hub.redirectTo = `${hub.endpoint}/org/name/resolve/main/model.gguf`;
  expect((await refusal(downloadFile(wanted, options, signal))).message).toContain("endlessly");
  hub.redirectTo = "file:///etc/passwd";
  expect((await refusal(downloadFile(wanted, options, signal))).message).toContain("nowhere");
});

test("offline, and with the hub gone, the cache serves; without it there is a clear error", async () => {
  expect((await refusal(downloadFile(wanted, { ...options, offline: true }, signal))).message).toContain(
    "HF_HUB_OFFLINE",
  );
  expect(hub.requests).toEqual([]);
  const path = await downloadFile(wanted, options, signal);
  hub.requests.length = 0;
  expect(await downloadFile(wanted, { ...options, offline: true }, signal)).toBe(path);
  expect(await downloadFile({ ...wanted, revision: commit }, options, signal)).toBe(path);
  expect(hub.requests).toEqual([]);
  await hub.stop();
  expect(await downloadFile(wanted, options, signal)).toBe(path);
  await refusal(downloadFile({ ...wanted, file: "other.gguf" }, options, signal));
});

test("two downloads at once share the work", async () => {
  const [a, b] = await Promise.all([downloadFile(wanted, options, signal), downloadFile(wanted, options, signal)]);
  expect(a).toBe(b);
  expect(hub.requests.filter(({ origin }) => origin === "store")).toHaveLength(1);
});

test("an abort ends a download at once and keeps what is there", async () => {
  const controller = new AbortController();
  hub.storeDisturbances = [
    (response, bytes) => {
      response.writeHead(200, { "content-length": bytes.length });
      response.write(bytes.subarray(0, 5000));
      return true; // and never the rest
    },
  ];
  const download = downloadFile(wanted, { ...options, onProgress: () => controller.abort() }, controller.signal);
  await expect(download).rejects.toThrow(expect.objectContaining({ name: "AbortError" }) as Error);
  expect(readFileSync(join(folder(), "blobs", `${digest}.incomplete`))).toHaveLength(5000);
  expect(existsSync(join(folder(), "blobs", `${digest}.lock`))).toBe(false);
});

describe("resolveModel", () => {
  const resolveHub = (source: string) => resolveModel(source, { hub: options }, signal);

  test("finds the only GGUF, prefers Q4_K_M, then Q8_0, else lists them", async () => {
    expect(await resolveHub("hf:org/name")).toMatchObject({ name: "org/name" });
    hub.files.clear();
    for (const name of ["a-Q2_K.gguf", "a-q8_0.gguf", "mmproj-a.gguf", "README.md"]) hub.files.set(name, builtin);
    expect(basename((await resolveHub("hf:org/name")).path)).toBe("a-q8_0.gguf");
    hub.files.set("a-Q4_K_M.gguf", builtin);
    expect(basename((await resolveHub("hf:org/name@main")).path)).toBe("a-Q4_K_M.gguf");
    hub.files.set("b-Q4_K_M.gguf", builtin);
    hub.files.delete("a-q8_0.gguf");
    expect((await refusal(resolveHub("hf:org/name"))).message).toContain("hf:org/name/b-Q4_K_M.gguf");
    hub.files.clear();
    expect((await refusal(resolveHub("hf:org/name"))).message).toContain("no GGUF");
  });

  test("takes a named file, in a folder too, and works offline afterwards", async () => {
    hub.files.set("sub/x.gguf", builtin);
    const { path } = await resolveHub("hf:org/name/sub/x.gguf");
    const offline = { hub: { ...options, offline: true } };
    expect((await resolveModel("hf:org/name", offline, signal)).path).toBe(path);
  });

  test("a file that is not GGUF is refused", async () => {
    hub.files.set("model.gguf", Buffer.from("<html>not a model</html>"));
    expect((await refusal(resolveHub("hf:org/name"))).message).toContain("not a GGUF");
  });

  test("names from the hub cannot lead out of the cache", async () => {
    hub.files.clear();
    hub.files.set("../../../../evil.gguf", builtin);
    expect((await refusal(resolveHub("hf:org/name"))).message).toContain("safe");
  });

  test.each([
    "hf:org",
    "hf:../x/y.gguf",
    "hf:org/name/../../y.gguf",
    "hf:org/..",
    "hf:org/name/x.bin",
    "hf:a--b/c",
    "",
  ])("%j is no model name", async (source) => {
    await refusal(resolveHub(source));
    expect(hub.requests).toEqual([]);
  });

  test("paths: absolute, relative, missing, not GGUF, a folder", async () => {
    const path = join(cacheDir, "some.gguf");
    writeFileSync(path, builtin);
    expect(await resolveModel(path, {}, signal)).toMatchObject({ path, name: "some" });
    expect((await resolveModel("some.gguf", { baseDir: cacheDir }, signal)).path).toBe(path);
    expect((await refusal(resolveModel("org/name", {}, signal))).message).toContain("hf:org/name");
    writeFileSync(path, "text");
    expect((await refusal(resolveModel(path, {}, signal))).message).toContain("not a GGUF");
    expect((await refusal(resolveModel(cacheDir, {}, signal))).message).toContain("folder");
  });

  test("builtin", async () => {
    expect(await resolveModel("builtin", {}, signal)).toMatchObject({ name: "stator-builtin" });
  });
});

import { type Dispatcher, request } from "undici";
import { StatorError } from "../protocol/index.ts";

export interface HfClientOptions {
  /** HF_ENDPOINT. Default https://huggingface.co. */
  readonly endpoint?: string;
  /** HF_TOKEN. Sent to the endpoint's own origin only, never along a redirect to another one. */
  readonly token?: string;
}

/** What the hub says about one file of a repository at one revision. */
export interface HfFileInfo {
  /** The 40 hex digits of the commit that the revision stands for. */
  readonly commit: string;
  /** Names the contents: SHA-256 for large files, the git blob's SHA-1 for others. */
  readonly etag: string;
  readonly sizeBytes: number | undefined;
  readonly url: URL;
}

export interface HfRepository {
  readonly commit: string;
  readonly files: readonly string[];
}

const maxRedirects = 5;
const headersTimeoutMs = 30_000;
const bodyTimeoutMs = 60_000;
const maxListingBytes = 32 << 20;

/** Something that may go better at the next attempt. Never leaves this folder. */
export class TransientFailure extends Error {
  override readonly name = "TransientFailure";
}

/** The few requests of the Hugging Face hub that fetching a model takes. */
export class HfClient {
  private readonly endpoint: URL;
  private readonly token: string | undefined;

  constructor(options: HfClientOptions) {
    const text = options.endpoint ?? "https://huggingface.co";
    if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) {
      throw new StatorError("model_unavailable", `HF_ENDPOINT is not an http address: ${text}`);
    }
    this.endpoint = new URL(text.endsWith("/") ? text : `${text}/`);
    this.token = options.token === "" ? undefined : options.token;
  }

  async fileInfo(repo: string, revision: string, file: string, signal: AbortSignal): Promise<HfFileInfo> {
    const path = [...repo.split("/"), "resolve", revision, ...file.split("/")].map(encodeURIComponent).join("/");
    const url = new URL(path, this.endpoint);
    // The answer about the file is the hub's own; what stores the bytes is asked only for them.
    const response = await this.send("HEAD", url, {}, signal, (location) => location.origin === this.endpoint.origin);
    await response.body.dump();
    this.requireSuccess(response.statusCode, `${repo}/${file}`, revision);
    const header = (name: string): string | undefined => {
      const value = response.headers[name];
      return Array.isArray(value) ? value[0] : value;
    };
    const commit = header("x-repo-commit") ?? "";
    const etag = (header("x-linked-etag") ?? header("etag") ?? "").replace(/^W\//, "").replaceAll('"', "");
    if (!/^[0-9a-f]{40}$/.test(commit) || !/^[\w-]{1,128}$/.test(etag)) {
      throw new StatorError("model_unavailable", `${this.endpoint.origin} does not answer like a Hugging Face hub.`);
    }
    const size = Number(header("x-linked-size") ?? header("content-length") ?? Number.NaN);
    return { commit, etag, sizeBytes: Number.isSafeInteger(size) && size >= 0 ? size : undefined, url };
  }

  async repository(repo: string, revision: string, signal: AbortSignal): Promise<HfRepository> {
    const path = ["api", "models", ...repo.split("/"), "revision", revision].map(encodeURIComponent).join("/");
    const response = await this.send("GET", new URL(path, this.endpoint), {}, signal);
    if (response.statusCode !== 200) await response.body.dump();
    this.requireSuccess(response.statusCode, repo, revision);
    const pieces: Buffer[] = [];
    let length = 0;
    for await (const piece of response.body as AsyncIterable<Buffer>) {
      length += piece.length;
      if (length > maxListingBytes) throw new StatorError("model_unavailable", `The file list of ${repo} is too long.`);
      pieces.push(piece);
    }
    const parsed = parseJson(Buffer.concat(pieces).toString("utf8"));
    const { sha, siblings } = (typeof parsed === "object" && parsed !== null ? parsed : {}) as Record<string, unknown>;
    if (typeof sha !== "string" || !Array.isArray(siblings)) {
      throw new StatorError("model_unavailable", `${this.endpoint.origin} does not answer like a Hugging Face hub.`);
    }
    const files = siblings.map((item: unknown) =>
      typeof item === "object" && item !== null ? (item as Record<string, unknown>).rfilename : undefined,
    );
    return { commit: sha, files: files.filter((name) => typeof name === "string") };
  }

  /** The file's bytes from `start` on. Status 200 (from the beginning all the same), 206 or 416. */
  async download(url: URL, start: number, signal: AbortSignal): Promise<Dispatcher.ResponseData> {
    const headers: Record<string, string> = start > 0 ? { range: `bytes=${start}-` } : {};
    const response = await this.send("GET", url, { "accept-encoding": "identity", ...headers }, signal);
    if (response.statusCode === 416) return response;
    if (response.statusCode >= 300) {
      await response.body.dump();
      this.requireSuccess(response.statusCode, url.pathname, "");
    }
    return response;
  }

  private async send(
    method: "GET" | "HEAD",
    start: URL,
    headers: Record<string, string>,
    signal: AbortSignal,
    follow: (location: URL) => boolean = () => true,
  ): Promise<Dispatcher.ResponseData> {
    let url = start;
    for (let redirects = 0; ; redirects++) {
      const mayKnowToken = this.token !== undefined && url.origin === this.endpoint.origin;
      const response = await request(url, {
        method,
        headers: {
          "user-agent": "stator",
          ...headers,
          ...(mayKnowToken ? { authorization: `Bearer ${this.token}` } : {}),
        },
        signal,
        headersTimeout: headersTimeoutMs,
        bodyTimeout: bodyTimeoutMs,
      }).catch((cause: unknown) => {
        signal.throwIfAborted();
        throw new TransientFailure(`No answer from ${url.origin}: ${reasonOf(cause)}`, { cause });
      });
      const { location } = response.headers;
      if (response.statusCode < 300 || response.statusCode >= 400 || typeof location !== "string") return response;
      const target = URL.canParse(location, url.href) ? new URL(location, url) : undefined;
      if (target === undefined || !/^https?:$/.test(target.protocol)) {
        await response.body.dump();
        throw new StatorError("model_unavailable", `${url.origin} redirects to nowhere.`);
      }
      if (!follow(target)) return response;
      await response.body.dump();
      if (url.protocol === "https:" && target.protocol === "http:") {
        throw new StatorError("model_unavailable", `${url.origin} redirects to an insecure address; not followed.`);
      }
      if (redirects === maxRedirects) throw new StatorError("model_unavailable", `${url.origin} redirects endlessly.`);
      url = target;
    }
  }

  private requireSuccess(status: number, what: string, revision: string): void {
    if (status < 400) return;
    if (status === 401 || status === 403) {
      const hint =
        this.token === undefined
          ? "If it is private or gated, set HF_TOKEN."
          : "The token (HF_TOKEN) is wrong or has no access to it.";
      throw new StatorError("model_unavailable", `${this.endpoint.host} denies access to ${what} (${status}). ${hint}`);
    }
    if (status === 404) {
      const at = revision === "" ? "" : ` at revision ${revision}`;
      throw new StatorError("model_unavailable", `${this.endpoint.host} has no ${what}${at}, or it is private.`);
    }
    if (status === 429 || status === 408 || status >= 500) {
      throw new TransientFailure(`${this.endpoint.host} answers with status ${status}.`);
    }
    throw new StatorError("model_unavailable", `${this.endpoint.host} answers with status ${status} for ${what}.`);
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const { code } = cause as NodeJS.ErrnoException;
  return cause.message === "" ? (code ?? cause.name) : cause.message;
}

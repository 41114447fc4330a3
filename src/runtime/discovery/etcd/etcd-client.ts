import { type EtcdClientOptions, Gateway, unavailable } from "./gateway.ts";

export type { EtcdClientOptions } from "./gateway.ts";

export interface KeyValue {
  readonly key: string;
  readonly value: string;
  /** Revision of the last change of the key. */
  readonly modRevision: bigint;
}

export interface KeyRange {
  readonly items: readonly KeyValue[];
  /** Of the store, when it was read. */
  readonly revision: bigint;
}

export type WatchEvent =
  | { readonly type: "put"; readonly item: KeyValue }
  | { readonly type: "delete"; readonly key: string };

const PAGE = 500;

/** A thin client: what discovery needs, nothing else. Every call has a deadline and rejects with a StatorError. */
export class EtcdClient {
  readonly #gateway: Gateway;

  constructor(options: EtcdClientOptions) {
    this.#gateway = new Gateway(options);
  }

  /** All keys that begin with `prefix`, as of one revision. */
  async range(prefix: string, signal: AbortSignal): Promise<KeyRange> {
    const items: KeyValue[] = [];
    let from = prefix;
    let revision: bigint | undefined;
    for (;;) {
      const answer = (await this.#gateway.post(
        "/v3/kv/range",
        {
          key: base64(from),
          range_end: base64(endOfPrefix(prefix)),
          limit: String(PAGE),
          ...(revision === undefined ? {} : { revision: String(revision) }),
        },
        signal,
      )) as RangeAnswer;
      revision ??= BigInt(answer.header.revision);
      for (const item of answer.kvs ?? []) items.push(readItem(item));
      if (answer.more !== true || items.length === 0) return { items, revision };
      from = `${items.at(-1)!.key}\0`;
    }
  }

  async get(key: string, signal: AbortSignal): Promise<KeyValue | undefined> {
    const { kvs } = (await this.#gateway.post("/v3/kv/range", { key: base64(key) }, signal)) as RangeAnswer;
    return kvs?.[0] && readItem(kvs[0]);
  }

  /**
   * Writes, if the key has not changed since `modRevision` (0 = it was not there). Gives the new revision; undefined when
   * it has changed.
   */
  put(
    key: string,
    value: string,
    leaseId: string,
    modRevision: bigint,
    signal: AbortSignal,
  ): Promise<bigint | undefined> {
    const put = { key: base64(key), value: base64(value), lease: leaseId };
    return this.#ifUnchanged(key, modRevision, { request_put: put }, signal);
  }

  /** Deletes, if the key has not changed since `modRevision`; undefined when it has. */
  delete(key: string, modRevision: bigint, signal: AbortSignal): Promise<bigint | undefined> {
    return this.#ifUnchanged(key, modRevision, { request_delete_range: { key: base64(key) } }, signal);
  }

  /** The id of a new lease. */
  async grantLease(ttlSeconds: number, signal: AbortSignal): Promise<string> {
    const { ID } = (await this.#gateway.post("/v3/lease/grant", { TTL: String(ttlSeconds) }, signal)) as { ID: string };
    return ID;
  }

  /** False when the lease is not there any more. */
  async keepLeaseAlive(id: string, signal: AbortSignal): Promise<boolean> {
    const { result } = (await this.#gateway.post("/v3/lease/keepalive", { ID: id }, signal)) as {
      result?: { TTL?: string };
    };
    if (result === undefined) throw unavailable("the keep-alive got no answer");
    return Number(result.TTL ?? 0) > 0;
  }

  async revokeLease(id: string, signal: AbortSignal): Promise<void> {
    await this.#gateway.post("/v3/lease/revoke", { ID: id }, signal);
  }

  /**
   * Changes under `prefix` from `fromRevision` on, until `signal` aborts (then it returns) or the stream breaks (then it
   * rejects; also when those revisions have been compacted away). `revision`: everything up to there has been told.
   */
  async watch(
    prefix: string,
    fromRevision: bigint,
    onEvents: (events: readonly WatchEvent[], revision: bigint) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const create = {
      create_request: {
        key: base64(prefix),
        range_end: base64(endOfPrefix(prefix)),
        start_revision: String(fromRevision),
      },
    };
    try {
      for await (const line of this.#gateway.lines("/v3/watch", create, signal)) readWatchLine(line, onEvents);
      throw unavailable("the watch ended");
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  close(): Promise<void> {
    return this.#gateway.close();
  }

  async #ifUnchanged(
    key: string,
    modRevision: bigint,
    operation: object,
    signal: AbortSignal,
  ): Promise<bigint | undefined> {
    const compare = [{ key: base64(key), target: "MOD", result: "EQUAL", mod_revision: String(modRevision) }];
    const answer = await this.#gateway.post("/v3/kv/txn", { compare, success: [operation] }, signal);
    const { succeeded, header } = answer as { succeeded?: boolean; header: Header };
    return succeeded === true ? BigInt(header.revision) : undefined;
  }
}

interface Header {
  readonly revision: string;
}

interface RawItem {
  readonly key: string;
  readonly value?: string;
  readonly mod_revision: string;
}

interface RangeAnswer {
  readonly header: Header;
  readonly kvs?: readonly RawItem[];
  readonly more?: boolean;
}

interface WatchLine {
  readonly error?: { readonly message?: string };
  readonly result?: {
    readonly canceled?: boolean;
    readonly compact_revision?: string;
    readonly cancel_reason?: string;
    readonly events?: readonly { readonly type?: "DELETE"; readonly kv: RawItem }[];
  };
}

function readWatchLine(line: string, onEvents: Parameters<EtcdClient["watch"]>[2]): void {
  if (line === "") return;
  const { error, result } = JSON.parse(line) as WatchLine;
  if (result === undefined) throw unavailable(`the watch failed: ${error?.message ?? "unknown answer"}`);
  if (result.canceled === true) {
    const compacted = result.compact_revision !== undefined && result.compact_revision !== "0";
    throw unavailable(compacted ? "the watch is too far behind" : `the watch was ended: ${result.cancel_reason}`);
  }
  const last = result.events?.at(-1);
  if (result.events === undefined || last === undefined) return;
  const events = result.events.map(({ type, kv }): WatchEvent => {
    return type === "DELETE" ? { type: "delete", key: fromBase64(kv.key) } : { type: "put", item: readItem(kv) };
  });
  // Not the header's: a watch that catches up gets its events in portions, each with the newest revision of the store.
  onEvents(events, BigInt(last.kv.mod_revision));
}

function readItem({ key, value, mod_revision }: RawItem): KeyValue {
  return { key: fromBase64(key), value: fromBase64(value ?? ""), modRevision: BigInt(mod_revision) };
}

/** The first key behind all that begin with `prefix`; the last character of ours is never the highest. */
function endOfPrefix(prefix: string): string {
  const last = prefix.length - 1;
  return prefix.slice(0, last) + String.fromCharCode(prefix.charCodeAt(last) + 1);
}

function base64(text: string): string {
  return Buffer.from(text).toString("base64");
}

function fromBase64(text: string): string {
  return Buffer.from(text, "base64").toString();
}

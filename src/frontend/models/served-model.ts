import { StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, type WorkerRecord } from "../../protocol/instance.ts";
import type { ModelCard } from "../../protocol/model-card.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";
import { callUnary } from "../../runtime/request-plane/call-unary.ts";
import type { RequestPlaneClient } from "../../runtime/request-plane/plane.ts";
import { byteTokenizer } from "../preprocess/byte-tokenizer.ts";
import { ChatTemplate } from "../preprocess/chat-template.ts";
import { type AskWorker, EngineTokenizer } from "../preprocess/engine-tokenizer.ts";
import { HuggingFaceTokenizer } from "../preprocess/huggingface-tokenizer.ts";
import type { Tokenizer } from "../preprocess/tokenizer.ts";
import { TurnCache } from "../preprocess/turn-cache.ts";
import { type InhibitionReason, type Inhibitions, inhibitionReason } from "./inhibitions.ts";
import { asClientSees } from "./worker-error.ts";

/** One helper call to a worker: tokenize, token table. */
const ASK_TIMEOUT_MS = 30_000;
/** A worker that has not taken a helper call by then is passed over for another one, if there is one. */
const ASK_ACCEPT_MS = 3_000;
/** Workers tried for one helper call. */
const ASK_ATTEMPTS = 3;

/** A model as the frontend serves it: the workers of one card, and what turns text into tokens and back. */
export class ServedModel {
  readonly card: ModelCard;
  readonly digest: string;
  /** Seconds since the Unix epoch, as /v1/models shows it. */
  readonly createdAtSeconds: number;
  readonly #plane: RequestPlaneClient;
  readonly #inhibitions: Inhibitions;
  readonly #workers = new Map<string, WorkerRecord>();
  /** Undefined after a change: sorting at each one would take quadratic time while thousands join. */
  #ids: readonly string[] | undefined = [];
  #tokenizer: Promise<Tokenizer> | undefined;
  #template: ChatTemplate | undefined;
  #tokenizerLoaded = false;
  #turn = 0;

  constructor(
    card: ModelCard,
    digest: string,
    createdAtSeconds: number,
    plane: RequestPlaneClient,
    inhibitions: Inhibitions,
  ) {
    this.card = card;
    this.digest = digest;
    this.createdAtSeconds = createdAtSeconds;
    this.#plane = plane;
    this.#inhibitions = inhibitions;
  }

  /** Ids of the workers that take requests, in a stable order. The same array until the set changes. */
  workerIds(): readonly string[] {
    this.#ids ??= [...this.#workers.keys()].sort();
    return this.#ids;
  }

  /** The workers to choose from: without those that failed, as long as there are others, unless the client names one. */
  candidates(wantedWorkerId: string | undefined, exclude?: ReadonlySet<string>): readonly string[] {
    const ids = this.workerIds();
    return wantedWorkerId === undefined ? this.#inhibitions.preferred(ids, exclude) : ids;
  }

  /** There is a worker beside `workerId` and those in `exclude`: only then is it right to give up on one early. */
  hasOther(workerId: string, exclude?: ReadonlySet<string>): boolean {
    return this.workerIds().some((id) => id !== workerId && !exclude?.has(id));
  }

  /** A call to the worker ended with that error, which may speak against the worker. */
  callFailed(record: WorkerRecord | undefined, error: StatorError): void {
    const reason = inhibitionReason(error);
    if (reason !== undefined) this.workerFailed(record, reason, error);
  }

  /** A call to the worker failed in a way that the next one would, too. `record`: as it was when the call began. */
  workerFailed(record: WorkerRecord | undefined, reason: InhibitionReason, error?: StatorError): void {
    if (record === undefined) return;
    const current = this.#workers.get(record.workerId);
    // News of a worker as it was before: the one that discovery shows now has done nothing wrong.
    if (current?.epoch !== record.epoch || current.address !== record.address) return;
    this.#inhibitions.inhibit(record, reason, error);
  }

  /** A request could be served right now. */
  get ready(): boolean {
    return this.#tokenizerLoaded && this.#workers.size > 0;
  }

  worker(id: string): WorkerRecord | undefined {
    return this.#workers.get(id);
  }

  /** How many there are. */
  get size(): number {
    return this.#workers.size;
  }

  /** For the catalog only. */
  put(record: WorkerRecord): void {
    this.#workers.set(record.workerId, record);
    this.#ids = undefined;
  }

  /** For the catalog only. */
  remove(workerId: string): void {
    this.#workers.delete(workerId);
    this.#ids = undefined;
  }

  /** Loaded once; a failed load is tried again by the next caller. `signal` ends this caller's wait, not the load. */
  async tokenizer(signal: AbortSignal): Promise<Tokenizer> {
    if (this.#tokenizer === undefined) {
      const loading = this.#loadTokenizer();
      this.#tokenizer = loading;
      loading.then(
        () => {
          this.#tokenizerLoaded = true;
        },
        () => {
          if (this.#tokenizer === loading) this.#tokenizer = undefined;
        },
      );
    }
    return abortable(this.#tokenizer, signal);
  }

  /** Compiled once. Throws `invalid_value` (param `model`) when the model cannot chat. */
  chatTemplate(): ChatTemplate {
    if (this.#template === undefined) {
      const { chatTemplate, bosToken, eosToken, name } = this.card;
      if (chatTemplate === undefined) {
        throw new StatorError(
          "invalid_value",
          `The model ${JSON.stringify(name)} has no chat template; use /v1/completions.`,
          {
            param: "model",
          },
        );
      }
      this.#template = new ChatTemplate(chatTemplate, { bosToken, eosToken });
    }
    return this.#template;
  }

  async close(): Promise<void> {
    const loaded = await this.#tokenizer?.catch(() => undefined);
    await loaded?.close();
  }

  /** The next request loads it again. */
  readonly #onTokenizerFailed = (): void => {
    this.#tokenizer = undefined;
  };

  async #loadTokenizer(): Promise<Tokenizer> {
    const source = this.card.tokenizer;
    const signal = AbortSignal.timeout(ASK_TIMEOUT_MS);
    switch (source.kind) {
      case "bytes":
        return byteTokenizer;
      case "engine":
        return new TurnCache(await EngineTokenizer.load(this.#ask, signal));
      case "huggingface":
        return new TurnCache(await HuggingFaceTokenizer.load(source.path, signal, this.#onTokenizerFailed));
      default:
        throw new StatorError("not_ready", `The model's card names a tokenizer of an unknown kind.`);
    }
  }

  /**
   * Any worker will do: each in turn, and the next one when a worker does not take the call. Rejects with `worker_lost`
   * when a worker was lost while it had it: whether another one should have it, too, is for the caller to say.
   */
  readonly #ask: AskWorker = async (endpoint, body, signal) => {
    const refused = new Set<string>();
    let lastError = new StatorError("not_ready", `No worker of ${JSON.stringify(this.card.name)} is ready.`, {
      retryAfterSeconds: 1,
    });
    while (refused.size < ASK_ATTEMPTS) {
      const ids = this.candidates(undefined, refused).filter((id) => !refused.has(id));
      const record = this.#workers.get(ids[this.#turn++ % ids.length] ?? "");
      if (record === undefined) break;
      const { workerId, address } = record;
      const call = {
        endpoint: calledEndpoint(record, endpoint),
        body,
        requestId: uniqueId(),
        timeoutMs: ASK_TIMEOUT_MS,
      };
      const acceptMs = this.hasOther(workerId, refused) ? ASK_ACCEPT_MS : undefined;
      try {
        return await callUnary(this.#plane, address, call, signal, acceptMs);
      } catch (error) {
        if (!(error instanceof StatorError)) throw error;
        this.callFailed(record, error);
        lastError = asClientSees(error, workerId);
        if (!error.class.migratable || error.code === "worker_lost") break;
        refused.add(workerId);
      }
    }
    throw lastError;
  };
}

function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      reject(
        signal.reason instanceof StatorError
          ? signal.reason
          : new StatorError("client_closed", "The request was cancelled."),
      );
    };
    if (signal.aborted) {
      onAbort();
      return;
    }
    signal.addEventListener("abort", onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

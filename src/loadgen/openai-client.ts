import { createParser } from "eventsource-parser";
import { Agent, request } from "undici";

export interface TargetOptions {
  /** Base address, for example `http://127.0.0.1:8000`. */
  readonly url: string;
  readonly model: string;
  readonly endpoint: "chat" | "completions";
  readonly apiKey?: string;
  /** Go on after the model's end token, so that answers have the length that was asked for. */
  readonly ignoreEos: boolean;
  readonly timeoutMs: number;
}

/** How one request went; times in ms, `startedAtMs` on the clock of `performance.now()`. */
export interface RequestRecord {
  readonly startedAtMs: number;
  /** How much later than planned it was sent. */
  readonly lateMs: number;
  readonly ttftMs: number | undefined;
  readonly e2eMs: number;
  /** Between pieces of text that came one after the other. */
  readonly gapsMs: readonly number[];
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
  /** Undefined = it ended well; else the status or code, short. */
  readonly error: string | undefined;
}

const MAX_ERROR_BYTES = 4096;

interface Chunk {
  readonly choices?: readonly {
    readonly text?: string | null;
    readonly delta?: { readonly content?: string | null };
  }[];
  readonly usage?: {
    readonly prompt_tokens?: number;
    readonly completion_tokens?: number;
    readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null;
  } | null;
  readonly error?: { readonly code?: string | null; readonly message?: string };
}

/** Streams from any OpenAI-compatible server. */
export class OpenAiClient {
  readonly #options: TargetOptions;
  readonly #agent: Agent;

  constructor(options: TargetOptions) {
    this.#options = options;
    this.#agent = new Agent({ connect: { timeout: 10_000 }, keepAliveTimeout: 30_000 });
  }

  /** The first model that the server lists. */
  async firstModel(signal: AbortSignal): Promise<string | undefined> {
    const { body, statusCode } = await request(`${this.#options.url}/v1/models`, {
      dispatcher: this.#agent,
      signal,
      headers: this.#headers(),
    });
    const text = await body.text();
    if (statusCode !== 200) throw new Error(`GET /v1/models answered ${statusCode}: ${text.slice(0, 200)}`);
    return (JSON.parse(text) as { data?: { id?: string }[] }).data?.[0]?.id;
  }

  /** Never rejects: what fails is in the record. */
  async send(prompt: string, maxTokens: number, lateMs: number, signal: AbortSignal): Promise<RequestRecord> {
    const startedAtMs = performance.now();
    const gapsMs: number[] = [];
    let ttftMs: number | undefined;
    let lastMs = startedAtMs;
    let usage: NonNullable<Chunk["usage"]> = {};
    let error: string | undefined;
    let done = false;
    try {
      const limit = AbortSignal.any([signal, AbortSignal.timeout(this.#options.timeoutMs)]);
      const { statusCode, body } = await request(this.#address(), {
        method: "POST",
        dispatcher: this.#agent,
        signal: limit,
        headers: { ...this.#headers(), "content-type": "application/json" },
        headersTimeout: this.#options.timeoutMs,
        bodyTimeout: this.#options.timeoutMs,
        body: JSON.stringify(this.#body(prompt, maxTokens)),
      });
      if (statusCode === 200) {
        const parser = createParser({
          onEvent: ({ data }) => {
            if (data === "[DONE]") {
              done = true;
              return;
            }
            const chunk = JSON.parse(data) as Chunk;
            if (chunk.usage) usage = chunk.usage;
            if (chunk.error) error = chunk.error.code ?? "error frame";
            const [choice] = chunk.choices ?? [];
            if (!(choice?.text || choice?.delta?.content)) return;
            const now = performance.now();
            if (ttftMs === undefined) ttftMs = now - startedAtMs;
            else gapsMs.push(now - lastMs);
            lastMs = now;
          },
        });
        const decoder = new TextDecoder();
        for await (const part of body) parser.feed(decoder.decode(part as Buffer, { stream: true }));
        if (!done) error ??= "no [DONE]";
      } else {
        error = errorOf(statusCode, (await body.text()).slice(0, MAX_ERROR_BYTES));
      }
    } catch (thrown) {
      const { code, name } = thrown as NodeJS.ErrnoException;
      error = signal.aborted ? "stopped" : name === "TimeoutError" ? "timeout" : (code ?? name);
    }
    return {
      startedAtMs,
      lateMs,
      ttftMs,
      e2eMs: performance.now() - startedAtMs,
      gapsMs,
      promptTokens: usage.prompt_tokens ?? 0,
      completionTokens: usage.completion_tokens ?? 0,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      error,
    };
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  #address(): string {
    const { url, endpoint } = this.#options;
    return `${url}/v1/${endpoint === "chat" ? "chat/completions" : "completions"}`;
  }

  #headers(): Record<string, string> {
    const { apiKey } = this.#options;
    return apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  }

  #body(prompt: string, maxTokens: number): object {
    const { model, endpoint, ignoreEos } = this.#options;
    return {
      model,
      ...(endpoint === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      max_tokens: maxTokens,
      stream: true,
      stream_options: { include_usage: true },
      ...(ignoreEos ? { ignore_eos: true } : {}),
    };
  }
}

function errorOf(status: number, text: string): string {
  try {
    const { error } = JSON.parse(text) as Chunk;
    return `${status} ${error?.code ?? error?.message?.slice(0, 80) ?? ""}`.trim();
  } catch {
    return String(status);
  }
}

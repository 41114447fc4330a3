import { createInterface } from "node:readline/promises";
import { createParser } from "eventsource-parser";
import { request } from "undici";
import { ConfigError } from "../config/config.ts";

export interface ChatOptions {
  readonly url: string;
  readonly model?: string;
  readonly system?: string;
  readonly maxTokens?: number;
  readonly temperature?: number;
  readonly apiKey: string | undefined;
}

interface Message {
  readonly role: "system" | "user" | "assistant";
  readonly content: string;
}

/** Reads lines, streams answers. Works in a terminal and with piped input. */
export async function chat(options: ChatOptions): Promise<void> {
  if (!URL.canParse(options.url) || !/^https?:$/.test(new URL(options.url).protocol)) {
    throw new ConfigError(`--url ${options.url}: write a whole address, for example http://127.0.0.1:8000.`);
  }
  const server = new ChatServer(options);
  const model = options.model ?? (await server.firstModel());
  const messages: Message[] = options.system === undefined ? [] : [{ role: "system", content: options.system }];
  const terminal = process.stdin.isTTY === true;
  const lines = createInterface({
    input: process.stdin,
    output: terminal ? process.stdout : undefined,
    prompt: terminal ? "> " : "",
  });
  if (terminal)
    process.stdout.write(`Talking to ${model} at ${options.url}. /exit leaves, Ctrl-C cancels an answer.\n`);

  let answering: AbortController | undefined;
  const onInterrupt = (): void => {
    if (answering === undefined) lines.close();
    else answering.abort();
  };
  lines.on("SIGINT", onInterrupt);
  process.on("SIGINT", onInterrupt);
  try {
    lines.prompt();
    for await (const line of lines) {
      const content = line.trim();
      if (content === "/exit") break;
      if (content !== "") {
        answering = new AbortController();
        const turn: Message = { role: "user", content };
        const answer = await server.answer(model, [...messages, turn], answering.signal);
        answering = undefined;
        // A turn that was refused or broke off is forgotten: it must not spoil the next one.
        if (answer === undefined && !terminal) process.exitCode = 1;
        if (answer !== undefined) messages.push(turn, { role: "assistant", content: answer });
      }
      lines.prompt();
    }
  } finally {
    process.removeListener("SIGINT", onInterrupt);
    lines.close();
  }
}

class ChatServer {
  readonly #options: ChatOptions;

  constructor(options: ChatOptions) {
    this.#options = options;
  }

  async firstModel(): Promise<string> {
    const { statusCode, body } = await this.#request("GET", "/v1/models");
    const listing = (await body.json()) as { data?: { id: string }[] };
    const model = listing.data?.[0]?.id;
    if (statusCode !== 200 || model === undefined) {
      throw new ConfigError(
        `The server at ${this.#options.url} serves no model yet; look at ${this.#options.url}/health.`,
      );
    }
    return model;
  }

  /**
   * Prints the answer as it comes and returns it; what was cancelled is returned as far as it came. undefined = refused
   * or broken off, which has been printed.
   */
  async answer(model: string, messages: readonly Message[], signal: AbortSignal): Promise<string | undefined> {
    const { maxTokens, temperature } = this.#options;
    let answer = "";
    let failed = false;
    try {
      const { statusCode, body } = await this.#request(
        "POST",
        "/v1/chat/completions",
        {
          model,
          messages,
          stream: true,
          ...(maxTokens ? { max_tokens: maxTokens } : {}),
          ...(temperature === undefined ? {} : { temperature }),
        },
        signal,
      );
      if (statusCode !== 200) {
        process.stdout.write(`[${statusCode}] ${errorMessage(await body.text())}\n`);
        return undefined;
      }
      const parser = createParser({
        onEvent: ({ data }) => {
          if (data === "[DONE]") return;
          const chunk = JSON.parse(data) as {
            error?: { message: string };
            choices?: { delta?: { content?: string } }[];
          };
          const text = chunk.error ? `\n[error] ${chunk.error.message}` : (chunk.choices?.[0]?.delta?.content ?? "");
          if (chunk.error) failed = true;
          else answer += text;
          process.stdout.write(process.stdout.isTTY ? withoutControls(text) : text);
        },
      });
      const decoder = new TextDecoder();
      for await (const part of body) parser.feed(decoder.decode(part as Uint8Array, { stream: true }));
    } catch (error) {
      failed = !signal.aborted;
      const reason = error instanceof ConfigError ? error.message : "the connection to the server was lost";
      process.stdout.write(signal.aborted ? " [cancelled]" : `\n[error] ${reason}`);
    }
    process.stdout.write("\n");
    return failed ? undefined : answer;
  }

  async #request(method: "GET" | "POST", path: string, payload?: unknown, signal?: AbortSignal) {
    const { url, apiKey } = this.#options;
    try {
      return await request(new URL(path, url), {
        method,
        headers: {
          ...(payload ? { "content-type": "application/json" } : {}),
          ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}),
        },
        body: payload === undefined ? null : JSON.stringify(payload),
        ...(signal ? { signal } : {}),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ConfigError(
        `No Stator server answers at ${url} (${(error as NodeJS.ErrnoException).code ?? error}). Start one: stator serve.`,
      );
    }
  }
}

/** A model's output must not steer the terminal: no escape sequences, no bells. */
function withoutControls(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "\ufffd");
}

function errorMessage(body: string): string {
  try {
    return (JSON.parse(body) as { error: { message: string } }).error.message;
  } catch {
    return body.slice(0, 500);
  }
}

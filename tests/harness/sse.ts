import { createParser } from "eventsource-parser";

export interface ChatChunk {
  readonly id: string;
  readonly choices: readonly {
    readonly index: number;
    readonly delta: { readonly role?: string; readonly content?: string };
    readonly finish_reason: string | null;
    readonly text?: string;
  }[];
  readonly usage?: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null;
  readonly error?: { message: string; type: string; code: string; param: string | null };
}

/** A stream read to its end. `done` = it ended with `[DONE]`. */
export interface ReadStream {
  readonly chunks: readonly ChatChunk[];
  readonly text: string;
  readonly finishReasons: readonly string[];
  readonly error: ChatChunk["error"] | undefined;
  readonly done: boolean;
}

export async function readStream(response: Response, onChunk?: (chunk: ChatChunk) => void): Promise<ReadStream> {
  const chunks: ChatChunk[] = [];
  let done = false;
  const parser = createParser({
    onEvent: ({ data }) => {
      if (done) throw new Error("a frame came after [DONE]");
      if (data === "[DONE]") {
        done = true;
        return;
      }
      const chunk = JSON.parse(data) as ChatChunk;
      chunks.push(chunk);
      onChunk?.(chunk);
    },
  });
  const decoder = new TextDecoder();
  for await (const part of response.body as unknown as AsyncIterable<Uint8Array>)
    parser.feed(decoder.decode(part, { stream: true }));
  const choices = chunks.flatMap((chunk) => chunk.choices ?? []);
  return {
    chunks,
    text: choices.map((choice) => choice.delta?.content ?? choice.text ?? "").join(""),
    finishReasons: choices.flatMap((choice) => choice.finish_reason ?? []),
    error: chunks.find((chunk) => chunk.error)?.error,
    done,
  };
}

import { readFile, stat } from "node:fs/promises";
import { parentPort, workerData } from "node:worker_threads";
import { Tokenizer } from "@huggingface/tokenizers";
import { encodeTokenTable } from "../../protocol/codec.ts";
import { huggingFaceTable } from "./huggingface-table.ts";

/*
 * The thread behind HuggingFaceTokenizer: it alone holds the vocabulary, so neither a long prompt nor the load stops
 * the server. Messages in: EncodeJob; out: the table once, then one EncodeResult per job.
 */

export interface EncodeJob {
  readonly id: number;
  readonly text: string;
  readonly addSpecial: boolean;
}

export type ThreadMessage =
  | { readonly kind: "ready"; readonly table: Uint8Array }
  | { readonly kind: "failed"; readonly reason: string }
  | { readonly kind: "encoded"; readonly id: number; readonly tokens: Uint32Array }
  | { readonly kind: "refused"; readonly id: number; readonly reason: string };

const port = parentPort!;
const send = (message: ThreadMessage): void => port.postMessage(message);

/** The largest ones of the field have about 40 MB. */
const MAX_FILE_BYTES = 512 * 1024 * 1024;

/** Its messages never quote the file: the path may be anything. */
async function readJson(path: string): Promise<unknown> {
  const file = await stat(path).catch((error: NodeJS.ErrnoException) => {
    throw new Error(`it cannot be read (${error.code})`);
  });
  if (!file.isFile() || file.size > MAX_FILE_BYTES) throw new Error("it is not a file of a sensible size");
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    throw new Error("it is not JSON");
  }
}

try {
  const json = (await readJson((workerData as { path: string }).path)) as object;
  const tokenizer = new Tokenizer(json, {});
  send({ kind: "ready", table: encodeTokenTable(huggingFaceTable(json)) });
  port.on("message", ({ id, text, addSpecial }: EncodeJob) => {
    try {
      const { ids } = tokenizer.encode(text, { add_special_tokens: addSpecial });
      send({ kind: "encoded", id, tokens: Uint32Array.from(ids) });
    } catch (error) {
      send({ kind: "refused", id, reason: String(error) });
    }
  });
} catch (error) {
  send({ kind: "failed", reason: error instanceof Error ? error.message : String(error) });
}

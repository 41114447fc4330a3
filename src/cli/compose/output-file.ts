import { closeSync, openSync, renameSync, rmSync, writeSync } from "node:fs";
import { ConfigError } from "../config/config.ts";

const CHUNK_CHARACTERS = 1 << 20;

/** A file that is there whole or not at all. Opened at the start: a place that cannot be written is not found out after the work. */
export class OutputFile {
  readonly #path: string;
  readonly #partPath: string;
  readonly #file: number;
  #text = "";

  /** `option` is what named the path. */
  constructor(path: string, option: string) {
    this.#path = path;
    this.#partPath = `${path}.part-${process.pid}`;
    try {
      this.#file = openSync(this.#partPath, "wx");
    } catch (cause) {
      const reason = (cause as NodeJS.ErrnoException).code ?? String(cause);
      throw new ConfigError(`${option} ${path}: cannot be written (${reason}).`, { cause });
    }
  }

  write(text: string): void {
    this.#text += text;
    if (this.#text.length >= CHUNK_CHARACTERS) this.#flush();
  }

  /** Puts it in its place, instead of what was there. */
  finish(): void {
    this.#flush();
    closeSync(this.#file);
    renameSync(this.#partPath, this.#path);
  }

  /** Removes what was written, if it is not finished. */
  discard(): void {
    rmSync(this.#partPath, { force: true });
  }

  #flush(): void {
    const bytes = Buffer.from(this.#text, "utf8");
    this.#text = "";
    for (let at = 0; at < bytes.length; ) at += writeSync(this.#file, bytes, at);
  }
}

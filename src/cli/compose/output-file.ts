import { closeSync, openSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { ConfigError } from "../config/config.ts";

const CHUNK_CHARACTERS = 1 << 20;

/** A file that is there whole or not at all. Opened at the start: a place that cannot be written is not found out after the work. */
export class OutputFile {
  readonly #path: string;
  readonly #option: string;
  readonly #partPath: string;
  readonly #file: number;
  #text = "";

  /** `option` is what named the path. */
  constructor(path: string, option: string) {
    this.#path = path;
    this.#option = option;
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.isDirectory()) throw new ConfigError(`${option} ${path}: this is a folder; name a file in it.`);
    // A device or a pipe cannot be replaced by a file.
    this.#partPath = found === undefined || found.isFile() ? `${path}.part-${process.pid}` : path;
    this.#file = this.#orFail(() => openSync(this.#partPath, "w"));
  }

  write(text: string): void {
    this.#text += text;
    if (this.#text.length >= CHUNK_CHARACTERS) this.#flush();
  }

  /** Puts it in its place, instead of what was there. */
  finish(): void {
    this.#flush();
    this.#orFail(() => {
      closeSync(this.#file);
      if (this.#partPath !== this.#path) renameSync(this.#partPath, this.#path);
    });
  }

  /** Removes what was written, if it is not finished. */
  discard(): void {
    if (this.#partPath !== this.#path) rmSync(this.#partPath, { force: true });
  }

  #flush(): void {
    const bytes = Buffer.from(this.#text, "utf8");
    this.#text = "";
    this.#orFail(() => {
      for (let at = 0; at < bytes.length; ) at += writeSync(this.#file, bytes, at);
    });
  }

  #orFail<Result>(act: () => Result): Result {
    try {
      return act();
    } catch (cause) {
      const reason = (cause as NodeJS.ErrnoException).code ?? String(cause);
      throw new ConfigError(`${this.#option} ${this.#path}: cannot be written (${reason}).`, { cause });
    }
  }
}

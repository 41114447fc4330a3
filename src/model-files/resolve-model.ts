import { access } from "node:fs/promises";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { StatorError } from "../protocol/index.ts";
import { readGguf } from "./gguf.ts";
import { downloadFile, type HfDownloadOptions, type HfFile, listFiles } from "./hf-download.ts";

/** Where a model comes from. */
export type ModelSource =
  | { readonly kind: "builtin" }
  | { readonly kind: "path"; readonly path: string }
  | ({ readonly kind: "hf" } & Omit<HfFile, "file"> & { readonly file: string | undefined });

export interface ResolvedModel {
  /** A readable GGUF file; the first part of a split one. */
  readonly path: string;
  /** The name to serve it under unless the operator gives another: `stator-builtin`, the file's name, or `org/repo`. */
  readonly name: string;
  readonly source: ModelSource;
}

export interface ResolveOptions {
  /** Relative paths start here. Default: the working directory. */
  readonly baseDir?: string;
  /** Needed for `hf:` only. */
  readonly hub?: HfDownloadOptions;
}

const builtinPath = fileURLToPath(new URL("../../models/builtin.gguf", import.meta.url));
const usage = "Use builtin, a path to a GGUF file, or hf:ORG/REPO[@REVISION][/FILE.gguf].";

/**
 * A model's file, downloaded when needed. `source` is `builtin`, a path, or `hf:ORG/REPO[@REVISION][/FILE.gguf]`.
 * Throws `model_unavailable` with what to do; never returns a file that is not GGUF.
 */
export async function resolveModel(
  source: string,
  options: ResolveOptions,
  signal: AbortSignal,
): Promise<ResolvedModel> {
  const parsed = parseModelSource(source);
  switch (parsed.kind) {
    case "builtin":
      await readGguf(builtinPath);
      return { path: builtinPath, name: "stator-builtin", source: parsed };
    case "path": {
      const path = resolve(options.baseDir ?? ".", parsed.path);
      await requireFile(path, source);
      await readGguf(path);
      const name = path.split(/[\\/]/).at(-1) ?? path;
      return { path, name: name.replace(/\.gguf$/i, ""), source: parsed };
    }
    case "hf": {
      if (options.hub === undefined) throw new StatorError("model_unavailable", `No hub is configured for ${source}.`);
      const { repo, revision } = parsed;
      const file = parsed.file ?? chooseFile(repo, await listFiles(repo, revision, options.hub, signal));
      const paths: string[] = [];
      for (const part of partsOf(file)) {
        paths.push(await downloadFile({ repo, revision, file: requireSafePath(part) }, options.hub, signal));
      }
      await readGguf(paths[0]!);
      return { path: paths[0]!, name: repo, source: parsed };
    }
  }
}

/** Takes a `--model` value apart. Throws `model_unavailable` for one that can be nothing. */
export function parseModelSource(source: string): ModelSource {
  if (source === "builtin") return { kind: "builtin" };
  if (!source.startsWith("hf:")) {
    if (source === "" || source.includes("\0"))
      throw new StatorError("model_unavailable", `No model is named. ${usage}`);
    return { kind: "path", path: source };
  }
  const name = "[A-Za-z0-9][A-Za-z0-9._-]*";
  const match = new RegExp(`^hf:(${name}/${name})(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?(?:/(.+))?$`).exec(source);
  const [, repo = "", revision = "main", file] = match ?? [];
  if (match === null || repo.includes("..") || repo.includes("--") || revision.includes("..")) {
    throw new StatorError("model_unavailable", `${source} is not a model name. ${usage}`);
  }
  if (file !== undefined && !file.toLowerCase().endsWith(".gguf")) {
    throw new StatorError("model_unavailable", `${file} is not a GGUF file. ${usage}`);
  }
  return { kind: "hf", repo, revision, file: file === undefined ? undefined : requireSafePath(file) };
}

/** One GGUF of a repository: the only one, else Q4_K_M, else Q8_0. */
export function chooseFile(repo: string, files: readonly string[]): string {
  const models = files.filter(
    (file) => /\.gguf$/i.test(file) && !/(^|\/)mmproj/i.test(file) && (splitName(file)?.part ?? 1) === 1,
  );
  if (models.length === 1) return requireSafePath(models[0]!);
  for (const kind of [/q4_k_m/i, /q8_0/i]) {
    const [match, second] = models.filter((file) => kind.test(file));
    if (match !== undefined && second === undefined) return requireSafePath(match);
  }
  if (models.length === 0) throw new StatorError("model_unavailable", `${repo} has no GGUF file.`);
  const shown = models.slice(0, 20).map((file) => `  hf:${repo}/${file}`);
  const more = models.length > shown.length ? [`  and ${models.length - shown.length} more`] : [];
  throw new StatorError(
    "model_unavailable",
    [`${repo} has ${models.length} GGUF files; name one of them:`, ...shown, ...more].join("\n"),
  );
}

/** All parts of a split model, or the file alone. llama.cpp finds the others beside the first. */
function partsOf(file: string): string[] {
  const split = splitName(file);
  if (split === undefined) return [file];
  const number = (value: number): string => String(value).padStart(5, "0");
  return Array.from(
    { length: split.parts },
    (_, index) => `${split.stem}-${number(index + 1)}-of-${number(split.parts)}.gguf`,
  );
}

function splitName(file: string): { stem: string; part: number; parts: number } | undefined {
  const match = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/i.exec(file);
  return match === null ? undefined : { stem: match[1]!, part: Number(match[2]), parts: Number(match[3]) };
}

/** Names come from a server: they must not lead out of the cache. */
function requireSafePath(file: string): string {
  const unsafe = file
    .split("/")
    .some((part) => part === "" || part === "." || part === ".." || /[\\:\0-\x1f]/.test(part) || part.length > 255);
  if (unsafe || file.length > 1000)
    throw new StatorError("model_unavailable", `${JSON.stringify(file)} is not a safe file name.`);
  return file;
}

async function requireFile(path: string, source: string): Promise<void> {
  await access(path).catch((cause: unknown) => {
    const hint = /^[\w.-]+\/[\w.-]+$/.test(source) ? ` For a model of the Hugging Face hub write hf:${source}.` : "";
    throw new StatorError("model_unavailable", `There is no model file ${path}.${hint}`, { cause });
  });
}

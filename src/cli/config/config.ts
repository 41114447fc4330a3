import { readFileSync } from "node:fs";
import { parseDocument } from "yaml";
import { closest } from "../../protocol/closest.ts";
import { type ConfigKey, type ConfigName, type ConfigValue, configKeys, envName } from "./config-keys.ts";

/** A mistake of the person who started the command: printed without a stack, exit code 78. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
}

export interface ConfigEntry {
  readonly name: ConfigName;
  readonly value: unknown;
  /** Where the value came from: `--port`, `--set`, `STATOR_HTTP_PORT`, `stator.yaml`, `default`. */
  readonly source: string;
}

export interface ConfigInputs {
  /** Values given by flags of their own, as text: name -> [text, flag]. */
  readonly flags: ReadonlyMap<ConfigName, readonly [string, string]>;
  /** `--set KEY=VALUE`, in order. */
  readonly sets: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Path of a YAML file. */
  readonly file?: string;
}

const MAX_FILE_BYTES = 1024 * 1024;
const names = Object.keys(configKeys) as ConfigName[];
/** STATOR_* variables that are not configuration keys. */
const otherVariables = new Set(["STATOR_CONFIG", "STATOR_API_KEY", "STATOR_TRACES", "STATOR_TEST_FULL"]);
/** Kubernetes puts such variables into every pod beside a service named `stator`. */
const kubernetesServiceVariable =
  /^STATOR_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$/;

/** The settled configuration: flag > STATOR_* > YAML file > default, each value with its source. */
export class Config {
  readonly #entries: ReadonlyMap<ConfigName, ConfigEntry>;

  private constructor(entries: ReadonlyMap<ConfigName, ConfigEntry>) {
    this.#entries = entries;
  }

  /** Throws a ConfigError that names the key, where it was set, and what it may be. */
  static load(inputs: ConfigInputs): Config {
    const entries = new Map<ConfigName, ConfigEntry>();
    const put = (name: ConfigName, raw: unknown, source: string): void => {
      entries.set(name, { name, value: checked(name, raw, source), source });
    };
    for (const name of names) entries.set(name, { name, value: configKeys[name].default, source: "default" });
    const file = inputs.file ?? inputs.env.STATOR_CONFIG;
    if (file) for (const [name, raw] of readYaml(file)) put(name, raw, file);
    for (const [name, text, variable] of readEnv(inputs.env)) put(name, fromText(name, text), variable);
    for (const pair of inputs.sets) {
      const at = pair.indexOf("=");
      if (at < 1) throw new ConfigError(`--set ${pair}: write --set KEY=VALUE.`);
      const name = knownName(pair.slice(0, at), "--set");
      put(name, fromText(name, pair.slice(at + 1)), "--set");
    }
    for (const [name, [text, flag]] of inputs.flags) put(name, fromText(name, text), flag);
    return new Config(entries);
  }

  get<Name extends ConfigName>(name: Name): ConfigValue<Name> {
    return this.#entries.get(name)!.value as ConfigValue<Name>;
  }

  /** Was it set by anybody? */
  isSet(name: ConfigName): boolean {
    return this.#entries.get(name)!.source !== "default";
  }

  /** Did a variable of another program set it? */
  isForeign(name: ConfigName): boolean {
    const { source } = this.#entries.get(name)!;
    return source === "HF_HOME" || ((configKeys[name] as ConfigKey).foreignEnv ?? []).includes(source);
  }

  /** All entries in the order of the table. */
  entries(): readonly ConfigEntry[] {
    return [...this.#entries.values()];
  }

  /**
   * Flags that give a child process the same configuration. Secrets travel in the environment only, and so do variables
   * of other programs.
   */
  toArguments(overrides: Partial<Record<ConfigName, string>> = {}): string[] {
    const args: string[] = [];
    for (const { name, value } of this.entries()) {
      const text = overrides[name] ?? (typeof value === "string" ? value : JSON.stringify(value));
      const inherited = !this.isSet(name) || this.isForeign(name);
      if (isConfidential(name, text) || (overrides[name] === undefined && inherited)) continue;
      args.push("--set", `${name}=${text}`);
    }
    return args;
  }

  /** What `toArguments` leaves out, as variables for a child process; of the secrets only those in `secrets`. */
  secretEnvironment(secrets: readonly ConfigName[]): Record<string, string> {
    const kept = this.entries().filter(({ name, value }) => {
      const isSecret = (configKeys[name] as ConfigKey).secret === true;
      return isConfidential(name, value) && !this.isForeign(name) && (!isSecret || secrets.includes(name));
    });
    return Object.fromEntries(kept.map(({ name, value }) => [envName(name), String(value)]));
  }
}

function knownName(name: string, where: string): ConfigName {
  if (Object.hasOwn(configKeys, name)) return name as ConfigName;
  const near = closest(name, names);
  throw new ConfigError(
    `${where}: unknown key ${JSON.stringify(name)}.${near ? ` Did you mean ${near}?` : ""} See docs/configuration.md.`,
  );
}

function checked(name: ConfigName, raw: unknown, source: string): unknown {
  const result = (configKeys[name] as ConfigKey).schema.safeParse(raw);
  if (result.success) return result.data;
  const value = shownValue(name, raw);
  const shown = value === "[hidden]" ? value : JSON.stringify(value);
  const reason = result.error.issues[0]?.message ?? "it does not fit";
  throw new ConfigError(`${source}: ${name} = ${shown}: ${reason}. See docs/configuration.md#${anchor(name)}.`);
}

/** What may be printed of a value: no secret, and no password of an address. */
export function shownValue(name: ConfigName, value: unknown): unknown {
  if ((configKeys[name] as ConfigKey).secret) return value === "" ? "" : "[hidden]";
  return typeof value === "string" ? value.replace(userInfo, "//[hidden]@") : value;
}

/** `//user:password@`, however wrong the rest. */
const userInfo = /\/\/\S*@/g;

function isConfidential(name: ConfigName, value: unknown): boolean {
  return shownValue(name, value) !== value;
}

/** Text of a flag or variable as the type that the key wants; the schema judges the result. */
function fromText(name: ConfigName, text: string): unknown {
  const fallback: unknown = configKeys[name].default;
  if (typeof fallback === "number") return /^-?\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text;
  if (typeof fallback === "boolean") return booleans.get(text.toLowerCase()) ?? text;
  if (Array.isArray(fallback)) {
    if (text.startsWith("[")) {
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
    }
    return text.split(",").map((part) => part.trim());
  }
  return text;
}

const booleans = new Map([
  ...["true", "1", "yes", "on"].map((text) => [text, true] as const),
  ...["false", "0", "no", "off", ""].map((text) => [text, false] as const),
]);

function* readEnv(env: ConfigInputs["env"]): Generator<[ConfigName, string, string]> {
  const byVariable = new Map(names.map((name) => [envName(name), name]));
  for (const name of names) {
    const foreign = (configKeys[name] as ConfigKey).foreignEnv?.find((variable) => env[variable]);
    if (foreign !== undefined) yield [name, env[foreign]!, foreign];
  }
  if (env.HF_HOME && !env.HF_HUB_CACHE) yield ["huggingface.cache", `${env.HF_HOME}/hub`, "HF_HOME"];
  for (const [variable, text] of Object.entries(env)) {
    if (!variable.startsWith("STATOR_") || text === undefined || otherVariables.has(variable)) continue;
    const name = byVariable.get(variable);
    if (name !== undefined) {
      yield [name, text, variable];
      continue;
    }
    if (kubernetesServiceVariable.test(variable)) continue;
    const near = closest(variable, [...byVariable.keys()]);
    throw new ConfigError(
      `Environment: unknown variable ${variable}.${near ? ` Did you mean ${near}?` : ""} See docs/configuration.md.`,
    );
  }
}

function* readYaml(file: string): Generator<[ConfigName, unknown]> {
  let source: string;
  try {
    source = readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(`${file}: cannot be read (${(cause as NodeJS.ErrnoException).code ?? cause}).`, { cause });
  }
  if (source.length > MAX_FILE_BYTES) throw new ConfigError(`${file}: larger than ${MAX_FILE_BYTES} bytes.`);
  const document = parseDocument(source, { uniqueKeys: true });
  const problem = document.errors[0];
  if (problem) throw new ConfigError(`${file}: ${problem.message}`);
  const root: unknown = document.toJS({ maxAliasCount: 100 });
  if (root === null || root === undefined) return;
  if (typeof root !== "object" || Array.isArray(root))
    throw new ConfigError(`${file}: the top level must be a mapping.`);
  const seen = new Set<ConfigName>();
  for (const [name, value] of flatten(root as Record<string, unknown>, "", file)) {
    if (seen.has(name)) throw new ConfigError(`${file}: ${name} is set twice.`);
    seen.add(name);
    yield [name, value];
  }
}

/** Nested mappings and dotted keys mean the same. */
function* flatten(node: Record<string, unknown>, prefix: string, file: string): Generator<[ConfigName, unknown]> {
  for (const [part, value] of Object.entries(node)) {
    const name = prefix + part;
    if (!Object.hasOwn(configKeys, name) && typeof value === "object" && value !== null && !Array.isArray(value)) {
      yield* flatten(value as Record<string, unknown>, `${name}.`, file);
      continue;
    }
    yield [knownName(name, file), value];
  }
}

/** The heading of a key in docs/configuration.md. */
export function anchor(name: string): string {
  return name.toLowerCase().replaceAll(".", "");
}

import { z } from "zod";
import { routerModes } from "../../router/select/router.ts";
import { logLevels } from "../../runtime/telemetry/log.ts";

/*
 * Every configuration key, once. From this table come the command-line flags, the STATOR_* variables, the checks of the
 * YAML file, `stator config print` and docs/configuration.md.
 */

export interface ConfigKey<Value = unknown> {
  readonly schema: z.ZodType<Value>;
  readonly default: Value;
  /** Ends up in docs and `--help`. */
  readonly help: string;
  /** A short flag of its own; every key can also be set by `--set KEY=VALUE`. */
  readonly flag?: string;
  /** Commands that offer the flag; default: all that have a configuration. */
  readonly on?: readonly CommandName[];
  /** Never printed. */
  readonly secret?: true;
  /** Variables of other programs that mean the same, used when STATOR_* is not set. */
  readonly foreignEnv?: readonly string[];
}

export type CommandName = "serve" | "frontend" | "worker" | "doctor" | "config";

const withEngine: readonly CommandName[] = ["serve", "worker", "doctor", "config"];
const withHttp: readonly CommandName[] = ["serve", "frontend", "doctor", "config"];

const key = <Value>(
  schema: z.ZodType<Value>,
  defaultValue: NoInfer<Value>,
  help: string,
  more: Pick<ConfigKey, "flag" | "on" | "secret" | "foreignEnv"> = {},
): ConfigKey<Value> => ({ schema, default: defaultValue, help, ...more });

const count = (min: number, max: number) => z.number().int().min(min).max(max);
const port = count(0, 65535);
const milliseconds = count(1, 86_400_000);
const bytes = count(1, 4 * 1024 * 1024 * 1024);
const text = z.string().min(1).max(4096);
const maybeText = z.string().max(4096);
const plainName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/, "use letters, digits and . _ : - only");
const secretText = z
  .string()
  .max(4096)
  .refine((it) => it === "" || Buffer.byteLength(it) >= 16, "it must have at least 16 bytes");

export const configKeys = {
  "model.source": key(
    text,
    "builtin",
    "What to serve: builtin, a path to a GGUF file, or hf:ORG/REPO[@REVISION][/FILE.gguf].",
    {
      flag: "--model <source>",
      on: withEngine,
    },
  ),
  "model.name": key(maybeText, "", "Served name; empty = stator-builtin, or the file's name.", {
    flag: "--model-name <name>",
    on: withEngine,
  }),
  "model.aliases": key(z.array(text).max(64), [], "Further names of the model."),
  "model.contextLength": key(
    count(0, 16_777_216),
    0,
    "Tokens of prompt and output together, per sequence; 0 = the model's own, at most 4096 (llama), 1048576 (echo).",
    { flag: "--context-length <tokens>", on: withEngine },
  ),
  "model.tokenizer": key(
    maybeText,
    "",
    "Path of a tokenizer.json; empty = the one beside the model file, else the engine's own.",
  ),

  "engine.kind": key(z.enum(["llama", "echo", "mocker"]), "llama", "Engine of the workers.", {
    flag: "--engine <kind>",
    on: withEngine,
  }),
  "engine.sequences": key(count(1, 256), 4, "llama: requests that one worker runs at once."),
  "engine.threads": key(
    count(0, 1024),
    0,
    "llama: threads per worker; 0 = the cores but one, divided by the workers, at least 1.",
  ),
  "engine.batchSize": key(count(32, 16384), 512, "llama: tokens per llama.cpp batch."),
  "engine.flashAttention": key(
    z.enum(["auto", "on", "off"]),
    "auto",
    "llama: auto = off for builtin (its output is exact), on for other models.",
  ),
  "engine.kvType": key(z.enum(["f16", "f32"]), "f16", "llama: number type of the KV cache."),
  "engine.tokenRate": key(
    z.number().min(0).max(1_000_000),
    0,
    "echo: tokens per second and stream; 0 = as fast as possible.",
    {
      flag: "--token-rate <rate>",
      on: withEngine,
    },
  ),
  "engine.maxRunning": key(count(1, 1_000_000), 16_384, "echo: requests that one worker runs at once."),
  "mocker.flavour": key(z.enum(["vllm", "sglang"]), "vllm", "mocker: whose scheduler it follows."),
  "mocker.speedup": key(
    z.number().min(0.001).max(100_000),
    1,
    "mocker: simulated time per real time; 10 = everything ten times as fast.",
    { flag: "--speedup <x>", on: withEngine },
  ),
  "mocker.timing": key(
    z.enum(["polynomial", "fixed", "roofline"]),
    "polynomial",
    "mocker: how long a pass takes: a published polynomial, mocker.prefillMs and mocker.decodeMs, or from mocker.modelConfig and mocker.gpu.",
  ),
  "mocker.prefillMs": key(z.number().min(0).max(1e6), 20, "mocker, fixed timing: of a pass with prefill."),
  "mocker.decodeMs": key(z.number().min(0.001).max(1e6), 10, "mocker, fixed timing: of a pass that gives tokens."),
  "mocker.modelConfig": key(maybeText, "", "mocker, roofline timing: path of a Hugging Face config.json."),
  "mocker.gpu": key(text, "h100_sxm", "mocker, roofline timing: GPU."),
  "mocker.tensorParallel": key(count(1, 1024), 1, "mocker, roofline timing: GPUs of one engine."),
  "mocker.blocks": key(
    count(0, 1_000_000_000),
    0,
    "mocker: KV blocks; 0 = what fits on the GPU (roofline), else the flavour's default.",
  ),
  "mocker.blockTokens": key(count(0, 65_536), 0, "mocker: tokens of a KV block; 0 = the flavour's default."),
  "mocker.maxSequences": key(count(1, 100_000), 256, "mocker: requests that run at once; more wait inside the engine."),
  "mocker.ranks": key(count(1, 1024), 1, "mocker: data-parallel ranks of one engine."),
  "mocker.startupMs": key(count(0, 86_400_000), 0, "mocker: simulated time from the start to the first pass."),

  "engine.canaryIdleMs": key(
    milliseconds,
    10_000,
    "An engine that has been idle for so long shows with one token that it works; one that cannot is restarted.",
  ),
  "engine.stallTimeoutMs": key(
    milliseconds,
    60_000,
    "A worker whose requests make no progress for so long is restarted.",
  ),

  workers: key(
    count(0, 10_000),
    2,
    "Worker processes that `serve` runs, at most 256; with discovery `memory` engines in its own.",
    {
      flag: "--workers <n>",
      on: ["serve", "doctor", "config"],
    },
  ),
  "worker.id": key(z.union([z.literal(""), plainName]), "", "worker: its name in the fleet; empty = a random one.", {
    flag: "--worker-id <id>",
    on: ["worker", "config"],
  }),
  "worker.count": key(
    count(1, 10_000),
    1,
    "worker: engines of the kind mocker or echo in one process, each a worker of its own, named <worker.id>-1, <worker.id>-2, ...",
    { flag: "--count <n>", on: ["worker", "config"] },
  ),
  "worker.host": key(
    text,
    "127.0.0.1",
    "worker: address that its request plane listens on. Beyond loopback set requestPlane.secret or tls.*.",
  ),
  "worker.port": key(port, 0, "worker: port of its request plane; 0 = any free one."),
  "worker.advertiseHost": key(
    maybeText,
    "",
    "worker: host under which frontends reach it; empty = worker.host, or this machine's first address for a wildcard.",
  ),

  "http.host": key(text, "127.0.0.1", "Address of the client port.", { flag: "--host <address>", on: withHttp }),
  "http.port": key(port, 8000, "Client port; 0 = any free one.", { flag: "--port <port>", on: withHttp }),
  "http.maxBodyBytes": key(bytes, 32 * 1024 * 1024, "Largest request body."),
  "http.maxHeaderBytes": key(count(1024, 1024 * 1024), 16 * 1024, "Largest request head."),
  "http.maxNesting": key(count(4, 1000), 64, "Deepest nesting of arrays and objects in a body."),
  "http.maxMessages": key(count(1, 1_000_000), 4096, "Most messages of one chat."),
  "http.maxStreams": key(count(1, 1_000_000), 16_384, "Requests in flight; more are refused with 503."),
  "http.headersTimeoutMs": key(milliseconds, 10_000, "Time to send the request head."),
  "http.bodyTimeoutMs": key(milliseconds, 60_000, "Time to send the whole request."),
  "http.keepAliveTimeoutMs": key(milliseconds, 65_000, "How long an idle connection stays open."),
  "http.slowReaderBufferBytes": key(
    bytes,
    1024 * 1024,
    "Bytes that wait for one slow reader before its generation pauses.",
  ),
  "http.slowReaderTimeoutMs": key(milliseconds, 60_000, "A reader that takes nothing for so long is cut."),

  "admin.host": key(
    z
      .string()
      .regex(/^(localhost|127(\.\d{1,3}){3}|::1)$/, "the admin port has no authentication, so it must be loopback"),
    "127.0.0.1",
    "Address of the admin port: loopback only, since it has no authentication.",
  ),
  "admin.port": key(port, 0, "Admin port; 0 = any free one, printed at start.", {
    flag: "--admin-port <port>",
    on: withHttp,
  }),

  "timeouts.acceptMs": key(
    milliseconds,
    3_000,
    "A worker that has neither taken nor refused a request by then is passed over for another one, if there is one, and gets no new requests until a probe reaches it.",
  ),
  "timeouts.firstTokenMs": key(milliseconds, 120_000, "Longest wait for a first token, queue included."),
  "timeouts.interTokenMs": key(milliseconds, 60_000, "Longest wait between two tokens."),
  "timeouts.totalMs": key(milliseconds, 1_800_000, "Longest time of a request; x-stator-timeout-ms shortens it."),

  "migration.limit": key(
    count(0, 100),
    3,
    "How often one sequence goes on with another worker when its worker is lost or shuts down; 0 = never.",
    { flag: "--migration-limit <n>", on: withHttp },
  ),
  "migration.maxTokens": key(
    count(1, 16_777_216),
    32_768,
    "Longest sequence, prompt and generated tokens together, that goes on with another worker.",
  ),

  "queue.perWorker": key(count(0, 1_000_000), 64, "Requests that wait at one worker; more are refused with 503."),
  "queue.timeoutMs": key(milliseconds, 60_000, "Longest wait in a queue."),

  "router.mode": key(
    z.enum(routerModes),
    "round-robin",
    "How a worker is chosen: each in turn, at random, the less busy of two, the least busy one, or by the client's header.",
    { flag: "--router-mode <mode>", on: withHttp },
  ),

  discovery: key(
    z
      .string()
      .max(4096)
      .regex(
        /^(memory|auto|file(:.+)?|etcds?:\/\/[^@]+)$/,
        "use memory, file, file:DIR or etcd://HOST:PORT[,HOST:PORT]; user and password have keys",
      ),
    "auto",
    "Where workers and frontends meet: memory (engines run in this process), file:DIR, file (the user's runtime folder), or etcd://HOST:PORT[,HOST:PORT], over TLS etcds://. auto = a private folder for `serve`, else file.",
    { flag: "--discovery <where>" },
  ),
  "discovery.namespace": key(plainName, "default", "Fleets in different namespaces do not see each other.", {
    flag: "--namespace <name>",
  }),
  "discovery.etcdUser": key(maybeText, "", "etcd: user name; empty = no authentication."),
  "discovery.etcdPassword": key(maybeText, "", "etcd: password; set it in the environment.", { secret: true }),
  "discovery.etcdTtlSeconds": key(count(2, 3600), 10, "etcd: a process that is gone is gone from etcd after so long."),
  "requestPlane.kind": key(
    z
      .string()
      .max(4096)
      .regex(/^(tcp|nats:\/\/[^@]+)$/, "use tcp or nats://HOST:PORT[,nats://HOST:PORT]; user and password have keys"),
    "tcp",
    "Transport between frontend and worker processes: tcp, or the servers of a NATS system, nats://HOST:PORT.",
    { flag: "--request-plane <kind>" },
  ),
  "requestPlane.codec": key(
    z.enum(["msgpack", "json"]),
    "msgpack",
    "worker: encoding that it asks its callers for; json is readable on the wire, and slower.",
  ),
  "requestPlane.secret": key(
    secretText,
    "",
    "Shared secret, at least 16 bytes, that frontends and workers prove to each other; set it in the environment. Empty = anybody who reaches a worker may call it.",
    { secret: true },
  ),
  "requestPlane.natsUser": key(maybeText, "", "NATS: user name."),
  "requestPlane.natsPassword": key(maybeText, "", "NATS: password; set it in the environment.", { secret: true }),
  "requestPlane.natsToken": key(maybeText, "", "NATS: token; set it in the environment.", { secret: true }),

  "tls.cert": key(maybeText, "", "PEM file of this process's certificate; with it the request plane speaks TLS only."),
  "tls.key": key(maybeText, "", "PEM file of the certificate's private key."),
  "tls.ca": key(
    maybeText,
    "",
    "PEM file of the authorities that sign the other side's certificates: of the request plane, etcds:// and NATS.",
  ),
  "tls.serverName": key(
    maybeText,
    "",
    "Name that workers' certificates must have; empty = the host of the worker's address.",
  ),
  "tls.requireClientCertificate": key(
    z.boolean(),
    false,
    "worker: refuse callers without a certificate that tls.ca has signed (mutual TLS).",
  ),

  "system.host": key(
    text,
    "127.0.0.1",
    "worker: address of its system port (/health, /live, /metrics, /metadata, /engine/*). Beyond loopback the last two need system.token.",
  ),
  "system.port": key(port, 0, "worker: its system port; 0 = any free one, written to the log."),
  "system.token": key(maybeText, "", "worker: bearer token for /metadata and /engine/*; set it in the environment.", {
    secret: true,
  }),

  "faults.script": key(
    maybeText,
    "",
    "YAML file that says when workers are killed, frozen, slowed down or cut off, for trials; empty = none. See docs/operate.md.",
    { flag: "--faults <file>", on: ["serve", "worker", "config"] },
  ),
  "faults.since": key(
    count(0, Number.MAX_SAFE_INTEGER),
    0,
    "When the times of the fault script begin, in ms since 1970; 0 = when the command starts. `serve` gives its workers its own start.",
  ),

  "shutdown.drainTimeoutMs": key(milliseconds, 30_000, "How long running requests may go on after Ctrl-C or SIGTERM."),
  "startup.timeoutMs": key(milliseconds, 300_000, "Longest start of the workers until `serve` gives up."),

  "log.level": key(z.enum(logLevels), "info", "Least severe log lines that are written.", {
    flag: "--log-level <level>",
  }),
  "log.format": key(z.enum(["auto", "pretty", "json"]), "auto", "auto = readable on a terminal, JSON lines otherwise."),

  "tracing.otlpEndpoint": key(
    maybeText,
    "",
    "OTLP/HTTP collector for spans, e.g. http://127.0.0.1:4318; empty = no tracing.",
    {
      foreignEnv: ["OTEL_EXPORTER_OTLP_ENDPOINT"],
    },
  ),

  "huggingface.endpoint": key(z.url().max(4096), "https://huggingface.co", "Hub that hf: models come from.", {
    foreignEnv: ["HF_ENDPOINT"],
  }),
  "huggingface.token": key(maybeText, "", "Access token for the hub; set it in the environment, not in a file.", {
    secret: true,
    foreignEnv: ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"],
  }),
  "huggingface.offline": key(z.boolean(), false, "Use only what the cache holds.", { foreignEnv: ["HF_HUB_OFFLINE"] }),
  "huggingface.cache": key(
    maybeText,
    "",
    "Folder of the hub cache; empty = the usual one (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub).",
    {
      foreignEnv: ["HF_HUB_CACHE"],
    },
  ),
} as const satisfies Record<string, ConfigKey<never> | ConfigKey>;

export type ConfigName = keyof typeof configKeys;
export type ConfigValue<Name extends ConfigName> =
  (typeof configKeys)[Name] extends ConfigKey<infer Value> ? Value : never;

/** A key's help with the values that it may have, where they are few. */
export function helpOf(key: ConfigKey): string {
  return key.schema instanceof z.ZodEnum ? `${key.help} One of ${key.schema.options.join(", ")}.` : key.help;
}

/** `http.maxBodyBytes` -> `STATOR_HTTP_MAX_BODY_BYTES`. */
export function envName(name: string): string {
  return `STATOR_${name
    .replace(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replaceAll(".", "_")
    .toUpperCase()}`;
}

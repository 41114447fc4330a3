#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { Command, CommanderError, InvalidArgumentError, Option } from "commander";
import { StatorError } from "../protocol/errors.ts";
import { routerModes } from "../router/select/router.ts";
import { EXIT_CONFIGURATION } from "../runtime/lifecycle/supervised-process.ts";
import { Config, ConfigError } from "./config/config.ts";
import {
  type CommandName,
  type ConfigKey,
  type ConfigName,
  configKeys,
  envName,
  helpOf,
} from "./config/config-keys.ts";

/** Each loads what it needs, and no other command's parts: half a second is long for a worker that is started again. */
const commands = {
  benchServe: async () => (await import("./commands/bench-serve.ts")).benchServe,
  chat: async () => (await import("./commands/chat.ts")).chat,
  doctor: async () => (await import("./commands/doctor.ts")).doctor,
  frontend: async () => (await import("./commands/frontend.ts")).frontend,
  printConfig: async () => (await import("./commands/config-print.ts")).printConfig,
  replay: async () => (await import("./commands/replay.ts")).replay,
  serve: async () => (await import("./commands/serve.ts")).serve,
  worker: async () => (await import("./commands/worker.ts")).worker,
};

const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  version: string;
};

const temperature = numberOption("a number from 0 to 2", (value) => value >= 0 && value <= 2);
const share = numberOption("a number from 0 to 1", (value) => value >= 0 && value <= 1);
const positiveNumber = numberOption("a number above 0, below 1e9", (value) => value > 0 && value < 1e9);
const wholeNumber = numberOption("a whole number", (value) => Number.isSafeInteger(value) && value >= 0);
const positiveInteger = numberOption(
  "a whole number above 0, below 1e9",
  (value) => Number.isInteger(value) && value >= 1 && value < 1e9,
);

const program = new Command("stator")
  .description("One fast, self-healing, explainable service over many LLM inference engines.")
  .version(version)
  .exitOverride()
  .configureHelp({ showGlobalOptions: true })
  .addHelpText(
    "after",
    "\nEvery key of docs/configuration.md can be set by --set KEY=VALUE, a STATOR_* variable, or a YAML file.",
  );

configured(program.command("serve"), "Run the HTTP frontend and its worker processes.").action(
  run(async (config) => (await commands.serve())(config, version)),
);
configured(program.command("frontend"), "Run the HTTP frontend alone; workers meet it through --discovery.").action(
  run(async (config) => (await commands.frontend())(config, version)),
);
configured(
  program.command("worker"),
  "Run one worker: an engine in a process of its own, which frontends find through --discovery. Its address, secret and TLS are keys for --set: worker.host, requestPlane.secret, tls.*; see docs/fleet.md.",
).action(run(async (config) => (await commands.worker())(config)));

program
  .command("chat")
  .description(
    "Talk to a running server. Ctrl-C cancels one answer, /exit leaves. STATOR_API_KEY is sent as the bearer token.",
  )
  .option("--url <url>", "base address of the server", "http://127.0.0.1:8000")
  .option("--model <name>", "served model (default: the first one that the server lists)")
  .option("--system <text>", "system message")
  .option("--max-tokens <n>", "longest answer", positiveInteger)
  .option("--temperature <t>", "0 = always the likeliest token, at most 2", temperature)
  .action(async (options) => (await commands.chat())({ ...options, apiKey: process.env.STATOR_API_KEY }));

configured(
  program.command("doctor"),
  "Check Node, ports, model, engine and memory, and say what to do; with --discovery, who is registered and reachable.",
)
  .option("--json", "one JSON document on standard output")
  .action(run(async (config, options) => (await commands.doctor())(config, { json: options.json === true, version })));

program
  .command("bench")
  .description("Measure a running server.")
  .command("serve")
  .description(
    "Load any OpenAI-compatible server and report TTFT, ITL, throughput and goodput. Open loop with --rate or --trace, else closed loop with --concurrency. STATOR_API_KEY is sent as the bearer token.",
  )
  .option("--url <url>", "base address of the server, with or without /v1", "http://127.0.0.1:8000")
  .option("--model <name>", "served model (default: the first one that the server lists)")
  .addOption(new Option("--endpoint <kind>", "which API").choices(["chat", "completions"]).default("chat"))
  .option("--requests <n>", "requests in all (of a trace: at most)", positiveInteger, 100)
  .option("--rate <r>", "open loop: requests per second", positiveNumber)
  .addOption(new Option("--arrivals <how>", "with --rate").choices(["poisson", "constant"]).default("poisson"))
  .option("--concurrency <n>", "closed loop: requests at once (default: 16); open loop: at most", positiveInteger)
  .option(
    "--trace <file>",
    "Mooncake JSONL, Azure LLM .csv, or a .yaml that describes a workload, at its own times; with --concurrency in a closed loop",
  )
  .option("--speed <x>", "how much faster than the trace", positiveNumber, 1)
  .option("--input-tokens <n>", "prompt, without the chat template", positiveInteger, 512)
  .option("--output-tokens <n>", "answer", positiveInteger, 64)
  .option("--shared-prefix <share>", "part of the prompt that a group shares, 0 to 1", share, 0)
  .option("--prefix-groups <n>", "different shared prefixes", positiveInteger, 1)
  .option("--turns <n>", "turns of each session", positiveInteger, 1)
  .option("--delay-ms <ms>", "from an answer to the session's next turn", wholeNumber, 0)
  .option(
    "--seed <n>",
    "of arrivals and texts; the same one sends the same prompts, which prefix caches know",
    wholeNumber,
    1,
  )
  .option(
    "--byte-tokens",
    "the server's tokens are bytes (mocker, echo): prompts of exactly the length that is asked for",
  )
  .option("--no-ignore-eos", "let the model end its answers (for servers without ignore_eos)")
  .option("--timeout-ms <ms>", "longest request", positiveInteger, 600_000)
  .option("--slo-ttft-ms <ms>", "objective for goodput: time to the first token", positiveNumber)
  .option("--slo-tpot-ms <ms>", "objective for goodput: mean time per further token", positiveNumber)
  .option("--slo-e2e-ms <ms>", "objective for goodput: whole request", positiveNumber)
  .option("--json", "one JSON document on standard output")
  .action(async (options) => (await commands.benchServe())({ ...options, apiKey: process.env.STATOR_API_KEY }));

program
  .command("replay <trace>")
  .description(
    "Simulate a fleet under a trace (Mooncake JSONL, Azure LLM .csv, or a .yaml that describes a workload; docs/simulate.md) in virtual time, with the production router. TRACE is a path, or a name in the folder STATOR_TRACES.",
  )
  .option("--workers <n>", "simulated engines (default: 1)", positiveInteger)
  .option("--prefill-workers <n>", "with --decode-workers: engines that only prefill", positiveInteger)
  .option("--decode-workers <n>", "engines that only decode", positiveInteger)
  .option("--kv-bandwidth <gb>", "prefill to decode: GB/s of the link of each engine", positiveNumber, 64)
  .addOption(
    new Option("--router-mode <mode>", "which worker a request gets")
      .choices(routerModes.filter((mode) => mode !== "direct"))
      .default("round-robin"),
  )
  .option("--seed <n>", "of the router's choices", wholeNumber, 1)
  .option("--arrival-speed <x>", "how much faster than the trace", positiveNumber, 1)
  .option("--concurrency <n>", "so many sessions at once, instead of the trace's times", positiveInteger)
  .option("--requests <n>", "only the first ones of the trace", positiveInteger)
  .addOption(new Option("--flavour <name>", "whose scheduler").choices(["vllm", "sglang"]).default("vllm"))
  .option("--timing <how>", "how long a pass takes: polynomial, roofline, or a JSON file with a table", "polynomial")
  .option("--model-config <file>", "with roofline: config.json of the model")
  .option("--hardware <sku>", "with roofline: GPU", "h100_sxm")
  .option("--tensor-parallel <n>", "GPUs of one engine", positiveInteger, 1)
  .option("--block-size <n>", "tokens of a KV block", positiveInteger, 64)
  .option("--blocks <n>", "KV blocks of an engine (default: what fits, with roofline; else 16384)", positiveInteger)
  .option("--slo-ttft-ms <ms>", "objective for goodput: time to the first token", positiveNumber)
  .option("--slo-tpot-ms <ms>", "objective for goodput: mean time per further token", positiveNumber)
  .option("--slo-e2e-ms <ms>", "objective for goodput: whole request", positiveNumber)
  .option("--faults <file>", "YAML file that says when workers are killed, frozen, slowed down or cut off")
  .option("--ladder", "compare one engine, round-robin, least-loaded, and prefill and decode apart")
  .option("--compare <file>", "several configurations, of a YAML file, side by side (docs/simulate.md)")
  .option("--html <file>", "write a page with charts, which needs nothing else")
  .option("--requests-out <file>", "write a line of JSON for each request")
  .option("--json", "one JSON document on standard output")
  .action(async (trace, options) => {
    await (await commands.replay())(trace, { ...options, tracesFolder: process.env.STATOR_TRACES });
  });

const config = program.command("config").description("Look at the configuration.");
configured(config.command("print"), "Print each key with its value and where it came from.")
  .option("--json", "one JSON document on standard output")
  .action(run(async (settled, options) => (await commands.printConfig())(settled, options.json === true)));

// The reader has gone (`| head`): the rest is for nobody.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
});

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exit(error.exitCode === 0 ? 0 : 2);
  if (error instanceof ConfigError || error instanceof StatorError) {
    process.stderr.write(`stator: ${error.message}\n`);
    process.exit(isConfigurationFault(error) ? EXIT_CONFIGURATION : 1);
  }
  throw error;
}

/** Starting again without a change would end the same way. */
function isConfigurationFault(error: ConfigError | StatorError): boolean {
  return error instanceof ConfigError || !error.class.retryable;
}

/** Adds the flags of the configuration table. */
function configured(command: Command, description: string): Command {
  command.description(description);
  const name = (command.parent === program ? command.name() : command.parent?.name()) as CommandName;
  for (const [keyName, key] of Object.entries(configKeys) as [ConfigName, ConfigKey][]) {
    if (key.flag === undefined || key.on?.includes(name) === false) continue;
    const shown = JSON.stringify(key.default);
    command.addOption(new Option(key.flag, `${helpOf(key)} [${keyName}, ${envName(keyName)}] (default: ${shown})`));
  }
  return command
    .option("--config <file>", "YAML file [STATOR_CONFIG]")
    .option(
      "--set <key=value>",
      "set any configuration key; may be repeated",
      (pair: string, all: string[]) => [...all, pair],
      [],
    );
}

function run(
  action: (config: Config, options: Record<string, unknown>) => Promise<void>,
): (options: Record<string, unknown>) => Promise<void> {
  return async (options) => {
    const flags = new Map<ConfigName, readonly [string, string]>();
    for (const [name, key] of Object.entries(configKeys) as [ConfigName, ConfigKey][]) {
      if (key.flag === undefined) continue;
      const option = new Option(key.flag);
      const value = options[option.attributeName()];
      if (typeof value === "string") flags.set(name, [value, option.long ?? key.flag]);
    }
    const inputs = { flags, sets: options.set as string[], env: process.env };
    await action(
      Config.load(typeof options.config === "string" ? { ...inputs, file: options.config } : inputs),
      options,
    );
  };
}

/** Commander names the option of what is wrong. */
function numberOption(what: string, accepts: (value: number) => boolean): (text: string) => number {
  return (text) => {
    const value = text.trim() === "" ? Number.NaN : Number(text);
    if (accepts(value)) return value;
    throw new InvalidArgumentError(`It must be ${what}.`);
  };
}

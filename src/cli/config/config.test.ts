import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Config, ConfigError, type ConfigInputs, shownValue } from "./config.ts";
import { type ConfigName, configKeys, envName } from "./config-keys.ts";

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "stator-config-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

function load(inputs: Partial<ConfigInputs> & { yaml?: string } = {}): Config {
  const { yaml, ...rest } = inputs;
  const base: ConfigInputs = { flags: new Map(), sets: [], env: {}, ...rest };
  if (yaml === undefined) return Config.load(base);
  const file = join(folder, "stator.yaml");
  writeFileSync(file, yaml);
  return Config.load({ ...base, file });
}

const source = (config: Config, name: ConfigName) => config.entries().find((entry) => entry.name === name)!.source;

describe("Config", () => {
  it("takes flag over environment over file over default, and knows which it was", () => {
    const yaml = "http:\n  port: 1\n  maxNesting: 10\nworkers: 5";
    const env = { STATOR_HTTP_PORT: "2", STATOR_HTTP_MAX_NESTING: "20" };
    const flags = new Map([["http.port", ["3", "--port"]]] as const);
    const config = load({ yaml, env, flags });
    expect(config.get("http.port")).toBe(3);
    expect(config.get("http.maxNesting")).toBe(20);
    expect(config.get("workers")).toBe(5);
    expect(config.get("queue.perWorker")).toBe(64);
    expect(source(config, "http.port")).toBe("--port");
    expect(source(config, "http.maxNesting")).toBe("STATOR_HTTP_MAX_NESTING");
    expect(source(config, "workers")).toContain("stator.yaml");
    expect(source(config, "queue.perWorker")).toBe("default");
  });

  it.each([
    ["unknown key in YAML", { yaml: "http:\n  prot: 1" }, /unknown key "http.prot". Did you mean http.port\?/],
    ["unknown --set key", { sets: ["worker=3"] }, /Did you mean workers\?/],
    ["unknown variable", { env: { STATOR_WORKER: "3" } }, /Did you mean STATOR_WORKERS\?/],
    ["not a number", { env: { STATOR_HTTP_PORT: "http" } }, /STATOR_HTTP_PORT: http.port = "http"/],
    ["out of range", { sets: ["http.port=70000"] }, /http.port = 70000.*docs\/configuration.md#httpport/s],
    ["not one of the choices", { yaml: "router.mode: fastest" }, /round-robin/],
    ["--set without =", { sets: ["http.port"] }, /KEY=VALUE/],
    ["broken YAML", { yaml: "a: [" }, /stator.yaml/],
    ["a key set twice", { yaml: "http:\n  port: 1\nhttp.port: 2" }, /http.port is set twice/],
    ["a list on top", { yaml: "- 1" }, /must be a mapping/],
    ["an alias bomb", { yaml: "a: &a [x,x,x,x]\nb: &b [*a,*a,*a]\nmodel.aliases: [*b]" }, /unknown key|model.aliases/],
    ["a prototype key", { yaml: "__proto__:\n  port: 1" }, /unknown key/],
  ] as const)("refuses %s", (_name, inputs, message) => {
    expect(() => load(inputs as Parameters<typeof load>[0])).toThrow(ConfigError);
    expect(() => load(inputs as Parameters<typeof load>[0])).toThrow(message);
  });

  it("leaves variables alone that Kubernetes adds beside a service named stator", () => {
    const env = {
      STATOR_PORT: "tcp://10.0.0.1:80",
      STATOR_SERVICE_HOST: "10.0.0.1",
      STATOR_PORT_80_TCP_ADDR: "10.0.0.1",
    };
    expect(load({ env }).get("http.port")).toBe(8000);
  });

  it("reads the Hugging Face variables, under STATOR_* of the same meaning", () => {
    const env = { HF_ENDPOINT: "http://127.0.0.1:1", HF_TOKEN: "secret", HF_HUB_OFFLINE: "1", HF_HOME: "/hf" };
    const config = load({ env });
    expect(config.get("huggingface.endpoint")).toBe("http://127.0.0.1:1");
    expect(config.get("huggingface.offline")).toBe(true);
    expect(config.get("huggingface.cache")).toBe("/hf/hub");
    const overridden = load({ env: { ...env, STATOR_HUGGINGFACE_ENDPOINT: "http://127.0.0.1:2" } });
    expect(overridden.get("huggingface.endpoint")).toBe("http://127.0.0.1:2");
  });

  it("never puts a secret into an error or a child's arguments", () => {
    const config = load({ env: { HF_TOKEN: "hf_secret" }, sets: ["workers=3"] });
    expect(config.toArguments()).toEqual(["--set", "workers=3"]);
    expect(() => load({ env: { HF_TOKEN: "s".repeat(5000) } })).toThrow(/= \[hidden\]:/);
    expect(shownValue("requestPlane.secret", 12345)).toBe("[hidden]");
  });

  it("treats the password of an address as a secret", () => {
    const otlp = "http://me:topsecret@127.0.0.1:4318";
    const config = load({ sets: [`tracing.otlpEndpoint=${otlp}`] });
    expect(config.toArguments()).toEqual([]);
    expect(config.secretEnvironment([])).toEqual({ STATOR_TRACING_OTLP_ENDPOINT: otlp });
    expect(shownValue("tracing.otlpEndpoint", otlp)).toBe("http://[hidden]@127.0.0.1:4318");
    for (const pair of ["discovery=etcd://me:topsecret@h:1", "requestPlane.kind=nats://me:topsecret@h:1"]) {
      expect(() => load({ sets: [pair] })).toThrow(/\/\/\[hidden\]@h:1".*user and password have keys/);
    }
  });

  it("hands a child the same configuration", () => {
    const first = load({
      sets: ["model.aliases=a,b", "engine.tokenRate=12.5", "http.port=9"],
      env: { STATOR_MODEL_NAME: "x=y z" },
    });
    const args = first.toArguments({ "worker.id": "w1" }).filter((arg) => arg !== "--set");
    const child = load({ sets: args });
    const values = (config: Config) => Object.fromEntries(config.entries().map(({ name, value }) => [name, value]));
    expect(values(child)).toEqual({ ...values(first), "worker.id": "w1" });
  });

  it("has a default that fits its own rule, and a variable of its own, for every key", () => {
    const names = Object.keys(configKeys) as ConfigName[];
    for (const name of names) expect(() => configKeys[name].schema.parse(configKeys[name].default), name).not.toThrow();
    expect(new Set(names.map(envName)).size).toBe(names.length);
  });
});

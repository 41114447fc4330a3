import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { StatorProcess, StatorServer, StatorWorker, temporaryFolder } from "../harness/stator-process.ts";

const started: { stop(): Promise<void> }[] = [];
afterEach(async () => {
  for (const it of started.splice(0).reverse()) await it.stop();
});

function keep<T extends { stop(): Promise<void> }>(it: T): T {
  started.push(it);
  return it;
}

const chat = "/v1/chat/completions";
const ask = async (server: StatorServer, content: string) => {
  const messages = [{ role: "user", content }];
  const response = await server.post(chat, { model: "stator-mocker", messages, max_tokens: 20 });
  expect(response.status).toBe(200);
  return (await response.json()) as {
    choices: { message: { content: string } }[];
    usage: { completion_tokens: number; prompt_tokens_details: { cached_tokens: number } };
  };
};

it("serve --engine mocker: says the same each time, and finds in its cache what it has seen", async () => {
  const server = keep(await StatorServer.serve(["--engine", "mocker", "--workers", "1", "--speedup", "20"]));
  const content = "a long question ".repeat(40);
  const first = await ask(server, content);
  expect(first.usage).toMatchObject({ completion_tokens: 20, prompt_tokens_details: { cached_tokens: 0 } });
  const second = await ask(server, content);
  expect(second.choices).toEqual(first.choices);
  expect(second.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(500);
});

it("a worker's system port shows its loads and can freeze it", async () => {
  const discovery = `file:${temporaryFolder()}`;
  const worker = keep(await StatorWorker.start(["--engine", "mocker", "--speedup", "20", "--discovery", discovery]));
  const server = keep(await StatorServer.frontend(["--discovery", discovery]));
  const engine = (path: string, body?: object) =>
    fetch(`${worker.systemUrl}/engine/${path}`, {
      ...(body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }),
    });
  expect(await (await engine("loads")).json()).toMatchObject({ running: 0, waiting: 0, usedBlocks: 0 });
  expect((await engine("freeze", {})).status).toBe(400);
  expect(await (await engine("freeze", { ms: 10_000 })).json()).toEqual({ frozenForMs: 10_000 }); // half a second here
  const began = performance.now();
  await ask(server, "hello");
  expect(performance.now() - began).toBeGreaterThan(300);
});

it("timing from a model and a GPU: what does not fit, or is missing, is said", async () => {
  const folder = temporaryFolder();
  const path = join(folder, "config.json");
  const shape = { hidden_size: 8192, num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8 };
  writeFileSync(
    path,
    JSON.stringify({ ...shape, intermediate_size: 28_672, vocab_size: 128_256, model_type: "llama" }),
  );
  const args = ["worker", "--engine", "mocker", "--set", "mocker.timing=roofline", "--discovery", `file:${folder}/d`];
  for (const [more, message] of [
    [[], /needs a Hugging Face config\.json/],
    [["--set", "mocker.modelConfig=/nowhere.json"], /nowhere\.json/],
    [["--set", `mocker.modelConfig=${path}`], /does not fit on 1 of them; raise mocker\.tensorParallel/],
    [["--set", `mocker.modelConfig=${path}`, "--set", "mocker.gpu=h100"], /Unknown GPU "h100".*h100_sxm/],
  ] as const) {
    const worker = new StatorProcess([...args, ...more]);
    expect((await worker.exited()).code).toBe(78);
    expect(worker.stderr).toMatch(message);
  }
  const good = ["--set", `mocker.modelConfig=${path}`, "--set", "mocker.tensorParallel=4", "--speedup", "10"];
  const worker = keep(await StatorWorker.start([...args.slice(1), ...good]));
  const described = (await (await fetch(`${worker.systemUrl}/engine/describe`)).json()) as {
    capacity: { totalBlocks: number };
  };
  expect(described.capacity.totalBlocks).toBeGreaterThan(1_000);
}, 60_000);

import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { afterEach, expect, it } from "vitest";
import { StatorServer, temporaryFolder, until } from "../harness/stator-process.ts";

const run = fileURLToPath(new URL("../../tools/run.mjs", import.meta.url));
const children: ChildProcess[] = [];
afterEach(() => {
  for (const { pid } of children.splice(0)) {
    try {
      process.kill(-pid!, "SIGKILL");
    } catch {
      // The group has ended.
    }
  }
});

/** An example as docs/extend.md starts it, with what it has printed. */
function example(
  name: string,
  ...args: string[]
): { child: ChildProcess; output: () => string; ended: Promise<number | null> } {
  const child = spawn(process.execPath, [run, "example", name, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  children.push(child);
  let text = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (data: Buffer) => {
      text += data.toString();
    });
  }
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, output: () => text, ended };
}

it("a custom service is found and called; a custom engine is served by the frontend", async () => {
  const discovery = `file:${temporaryFolder()}`;
  const service = example("custom-service", discovery, "serve");
  await until(
    () => service.output().includes("serving as"),
    60_000,
    () => service.output(),
    () => service.child.exitCode !== null,
  );
  const call = example("custom-service", discovery, "call", "Ada");
  expect(await call.ended).toBe(0);
  expect(call.output()).toBe("Hello,\nAda!\n");

  const engine = example("custom-engine", discovery);
  await until(
    () => engine.output().includes("serves shouter"),
    60_000,
    () => engine.output(),
    () => engine.child.exitCode !== null,
  );
  const frontend = await StatorServer.frontend(["--discovery", discovery]);
  const response = await frontend.post("/v1/chat/completions", {
    model: "shouter",
    messages: [{ role: "user", content: "hello there" }],
  });
  const { choices } = (await response.json()) as { choices: { message: { content: string } }[] };
  expect(choices[0]!.message.content).toBe("HELLO! THERE! ");
  // The whole group, as Ctrl-C in a terminal does.
  process.kill(-engine.child.pid!, "SIGINT");
  await engine.ended;
  await until(
    async () => (await (await fetch(`${frontend.url}/v1/models`)).text()).includes('"data":[]'),
    10_000,
    () => frontend.describe(),
  );
  await frontend.stop();
}, 120_000);

import { spawn } from "node:child_process";
import { expect, it } from "vitest";
import { until } from "../harness/stator-process.ts";

it("npm start serves, and a SIGTERM to npm alone ends everything", async () => {
  const npm = spawn("npm", ["start", "--", "--engine", "echo", "--workers", "1", "--port", "0"], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [npm.stdout, npm.stderr]) {
    stream.on("data", (data: Buffer) => {
      output += data.toString();
    });
  }
  try {
    await until(
      () => /URL\s+\S+\/v1/.test(output),
      60_000,
      () => output,
    );
    const url = /URL\s+(\S+)\/v1/.exec(output)![1]!;
    const body = JSON.stringify({ model: "stator-echo", prompt: "hi", max_tokens: 2 });
    const headers = { "content-type": "application/json" };
    expect((await fetch(`${url}/v1/completions`, { method: "POST", headers, body })).status).toBe(200);
    npm.kill("SIGTERM");
    await until(
      async () => (await fetch(`${url}/live`).catch(() => undefined)) === undefined,
      15_000,
      () => `the server still answers: ${output}`,
    );
    await until(
      () => output.includes('"msg":"stopped"'),
      10_000,
      () => output,
    );
  } finally {
    npm.kill("SIGKILL");
  }
}, 90_000);

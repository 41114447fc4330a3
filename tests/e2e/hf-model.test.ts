import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StatorProcess, StatorServer, temporaryFolder } from "../harness/stator-process.ts";

/** `--model hf:...` through the whole command, against a hub on this machine that needs a token. */
describe("stator serve --model hf:", () => {
  const model = readFileSync("models/builtin.gguf");
  const env: Record<string, string> = { HF_HOME: temporaryFolder(), HF_TOKEN: "hf_secret" };
  const args = ["--model", "hf:org/name/model.gguf", "--workers", "1"];
  let hub: Server;
  let requests = 0;

  beforeAll(async () => {
    hub = createServer((request, response) => {
      requests += 1;
      if (request.headers.authorization !== "Bearer hf_secret") response.writeHead(401).end();
      else if (request.url !== "/org/name/resolve/main/model.gguf") response.writeHead(404).end();
      else {
        response.writeHead(200, {
          "content-length": model.length,
          "x-repo-commit": "0123456789abcdef0123456789abcdef01234567",
          "x-linked-etag": `"${createHash("sha256").update(model).digest("hex")}"`,
          "x-linked-size": model.length,
        });
        response.end(request.method === "HEAD" ? undefined : model);
      }
    });
    await new Promise<void>((resolve) => hub.listen(0, "127.0.0.1", resolve));
    env.HF_ENDPOINT = `http://127.0.0.1:${(hub.address() as AddressInfo).port}`;
  });
  afterAll(() => hub?.close());

  it("downloads once, serves, and needs no hub the next time", async () => {
    const server = await StatorServer.serve(args, { env });
    const answer = await server.post("/v1/completions", { model: "org/name", prompt: "Hi", max_tokens: 3 });
    expect(answer.status).toBe(200);
    expect((await fetch(`${server.url}/v1/models/org/name`)).status).toBe(200);
    expect(server.stderr).toContain("downloading the model");
    expect(server.stderr + server.stdout).not.toContain("hf_secret");
    await server.stop();

    const before = requests;
    const again = await StatorServer.serve(args, { env: { ...env, HF_HUB_OFFLINE: "1" } });
    expect(requests).toBe(before);
    await again.stop();
  });

  it.each([
    ["an unknown file", { HF_HOME: temporaryFolder() }, "hf:org/name/other.gguf", /other\.gguf/],
    ["a wrong token", { HF_HOME: temporaryFolder(), HF_TOKEN: "hf_wrong" }, "hf:org/name/model.gguf", /HF_TOKEN|token/],
    [
      "no hub allowed",
      { HF_HOME: temporaryFolder(), HF_HUB_OFFLINE: "1" },
      "hf:org/name/model.gguf",
      /OFFLINE|offline/,
    ],
    ["a name that is none", {}, "hf:../../etc/passwd", /not a model name/],
  ])("says what is wrong with %s", async (_name, extra, source, message) => {
    const stator = new StatorProcess(["serve", "--port", "0", "--model", source], { env: { ...env, ...extra } });
    expect((await stator.exited()).code).toBe(78);
    expect(stator.stderr).toMatch(message);
    expect(stator.stderr).not.toMatch(/\n\s+at |hf_secret|hf_wrong/);
  });
});

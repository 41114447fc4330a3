import { readFileSync } from "node:fs";
import { Agent, request } from "undici";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { RawHttp } from "../harness/raw-http.ts";
import { StatorServer, until } from "../harness/stator-process.ts";

const chat = "/v1/chat/completions";

/** Resident memory of the process that runs the frontend. */
const rssMegabytes = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]) / 1024;

describe("endurance", () => {
  it("stays flat over 20,000 requests", async () => {
    // A small young generation: else it alone makes resident memory jump by tens of megabytes.
    const env = { NODE_OPTIONS: "--max-semi-space-size=1" };
    const server = await StatorServer.serve(["--engine", "echo", "--workers", "2", "--log-level", "warn"], { env });
    const agent = new Agent({ connections: 32, pipelining: 1 });
    const body = (i: number) =>
      JSON.stringify({
        model: "stator-echo",
        messages: [{ role: "user", content: `request ${i} ${"x".repeat(i % 500)}` }],
        max_tokens: 16,
        stream: i % 2 === 0,
      });
    let sent = 0;
    const send = async (count: number): Promise<void> => {
      const end = sent + count;
      await Promise.all(
        Array.from({ length: 32 }, async () => {
          while (sent < end) {
            const i = sent++;
            const answer = await request(server.url + chat, {
              method: "POST",
              dispatcher: agent,
              headers: { "content-type": "application/json" },
              body: body(i),
            });
            const text = await answer.body.text();
            if (answer.statusCode !== 200 || (i % 2 === 0 && !text.endsWith("data: [DONE]\n\n"))) throw new Error(text);
          }
        }),
      );
    };
    await send(10_000); // warm up: code is compiled, buffers and pools have their size
    const rounds: number[] = [];
    for (let round = 0; round < 9; round++) {
      await send(3_000);
      rounds.push(rssMegabytes(server.pid));
    }
    expect(sent).toBeGreaterThanOrEqual(37_000);
    // Garbage makes single figures jump, so the lowest of three counts. A leak of 1 kB per request would add 18 MB.
    const growth = Math.min(...rounds.slice(-3)) - Math.min(...rounds.slice(0, 3));
    expect(growth, `RSS in MB after each 3,000: ${rounds.map((mb) => mb.toFixed(0))}`).toBeLessThan(12);
    await agent.close();
    await server.stop();
  }, 180_000);

  describe("5,000 idle streams", () => {
    let server: StatorServer;
    const sockets: RawHttp[] = [];
    beforeAll(async () => {
      // A token every 100 s: after its first token a stream is idle for the rest of the test.
      const rate = [
        "--token-rate",
        "0.01",
        "--set",
        "timeouts.interTokenMs=600000",
        "--set",
        "timeouts.firstTokenMs=600000",
      ];
      server = await StatorServer.serve(["--engine", "echo", "--workers", "2", "--log-level", "warn", ...rate]);
    });
    afterAll(async () => {
      for (const socket of sockets) socket.close();
      await server?.stop();
    });

    it("take less than 250 MB and leave others undisturbed", async () => {
      const body = JSON.stringify({
        model: "stator-echo",
        messages: [{ role: "user", content: "hi" }],
        max_tokens: 100,
        stream: true,
      });
      for (let i = 0; i < 5_000; i++) {
        sockets.push(RawHttp.open(server.url).post(chat, body));
        if (i % 100 === 99)
          await until(
            async () => (await server.inFlight()) > i - 100,
            30_000,
            () => server.describe(),
          );
      }
      await until(
        async () => (await server.inFlight()) === 5_000,
        60_000,
        () => server.describe(),
      );
      expect(rssMegabytes(server.pid)).toBeLessThan(250);
      expect((await fetch(`${server.url}/health`)).status).toBe(200);
      for (const socket of sockets) socket.close();
      await until(
        async () => (await server.inFlight()) === 0,
        30_000,
        () => server.describe(),
      );
    }, 180_000);
  });
});

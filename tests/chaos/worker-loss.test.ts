import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readStream } from "../harness/sse.ts";
import { StatorServer, until } from "../harness/stator-process.ts";

const chat = "/v1/chat/completions";

describe("losing a worker under load, without migration", () => {
  let server: StatorServer;
  beforeAll(async () => {
    server = await StatorServer.serve([
      "--engine",
      "echo",
      "--token-rate",
      "50",
      "--workers",
      "2",
      "--migration-limit",
      "0",
      "--set",
      "timeouts.interTokenMs=60000",
    ]);
  });
  afterAll(() => server?.stop());

  const start = (content: string) =>
    server.post(chat, { model: "stator-echo", messages: [{ role: "user", content }], max_tokens: 150, stream: true });

  it.each(["SIGKILL", "SIGSTOP"] as const)(
    "%s ends its streams with a typed error and [DONE], touches no other, and it comes back",
    async (signal) => {
      const victim = (await server.workers()).find(({ id }) => id === "worker-1")!;
      const responses = await Promise.all(Array.from({ length: 20 }, (_, i) => start(`stream ${i}`)));
      const owners = responses.map((response) => response.headers.get("x-stator-worker-id"));
      expect(owners.filter((owner) => owner === "worker-1")).toHaveLength(10);
      process.kill(victim.pid, signal);
      const streams = await Promise.all(responses.map((response) => readStream(response)));
      streams.forEach((stream, i) => {
        expect(stream.done).toBe(true);
        if (owners[i] === "worker-1") {
          expect(stream.error?.code).toBe("worker_lost");
          expect(stream.finishReasons).toEqual([]);
        } else {
          expect(stream.error).toBeUndefined();
          expect(stream.finishReasons).toEqual(["length"]);
          expect(stream.text).toHaveLength(150);
        }
      });
      await until(
        async () =>
          (await server.workers()).some(
            ({ id, pid, state }) => id === "worker-1" && pid !== victim.pid && state === "ready",
          ),
        60_000,
        () => server.describe(),
      );
      await until(
        async () => (await fetch(`${server.url}/health`)).status === 200,
        5_000,
        () => server.describe(),
      );
      const again = await server.post(
        chat,
        { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 2 },
        { headers: { "x-stator-worker-id": "worker-1" } },
      );
      expect(again.status).toBe(200);
    },
    90_000,
  );

  it("answers new requests from the others while one is down", async () => {
    const victim = (await server.workers()).find(({ id }) => id === "worker-2")!;
    process.kill(victim.pid, "SIGKILL");
    const answers = await Promise.all(
      Array.from({ length: 20 }, () =>
        server.post(chat, { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 2 }),
      ),
    );
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
    await until(
      async () =>
        (await server.workers()).some(
          ({ id, pid, state }) => id === "worker-2" && pid !== victim.pid && state === "ready",
        ),
      30_000,
      () => server.describe(),
    );
  });

  it("passes over a frozen worker long before its connection is given up", async () => {
    await until(
      async () => (await fetch(`${server.url}/health`)).status === 200,
      30_000,
      () => server.describe(),
    );
    const victim = (await server.workers()).find(({ id }) => id === "worker-1")!;
    process.kill(victim.pid, "SIGSTOP");
    try {
      const ask = async (count: number): Promise<number> => {
        const startedAt = performance.now();
        const answers = await Promise.all(
          Array.from({ length: count }, () =>
            server.post(chat, { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 2 }),
          ),
        );
        expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
        expect(new Set(answers.map(({ headers }) => headers.get("x-stator-worker-id")))).toEqual(new Set(["worker-2"]));
        return performance.now() - startedAt;
      };
      await ask(8);
      // From then on it is left alone: nobody waits for it any more.
      expect((await server.inhibited())["worker-1"]).toBe("silent");
      expect(await ask(8)).toBeLessThan(2_000);
    } finally {
      process.kill(victim.pid, "SIGCONT");
    }
    await until(
      async () => (await server.inhibited())["worker-1"] === null,
      30_000,
      () => server.describe(),
    );
  });
});

describe("losing all workers", () => {
  it("is never `model not found`: 502 or 503 with Retry-After, and unhealthy at once", async () => {
    const server = await StatorServer.serve(["--engine", "echo", "--workers", "1"]);
    const body = { model: "stator-echo", messages: [{ role: "user", content: "x" }], max_tokens: 1 };
    const [worker] = await server.workers();
    process.kill(worker!.pid, "SIGKILL");
    await until(
      async () => (await fetch(`${server.url}/health`)).status === 503,
      5_000,
      () => server.describe(),
    );
    const seen: number[] = [];
    await until(
      async () => {
        const answer = await server.post("/v1/chat/completions", body);
        if (answer.status !== 200) expect(answer.headers.get("retry-after")).not.toBeNull();
        seen.push(answer.status);
        return answer.status === 200;
      },
      20_000,
      () => `${seen}`,
    );
    expect(seen.filter((status) => ![200, 502, 503].includes(status))).toEqual([]);
    await server.stop();
  });
});

import { afterEach, describe, expect, it } from "vitest";
import { callUnary } from "./call-unary.ts";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "./memory.ts";
import type { CallHandler } from "./plane.ts";

describe("callUnary", () => {
  const closers: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0)) await close();
  });

  async function ask(handler: CallHandler, acceptTimeoutMs?: number): Promise<Uint8Array> {
    const network = new MemoryNetwork();
    const server = new MemoryRequestPlaneServer("worker", { network });
    const plane = new MemoryRequestPlaneClient({ network });
    closers.push(
      () => plane.close(),
      () => server.close(),
    );
    server.handle("ask", handler);
    await server.listen();
    const call = { endpoint: "ask", requestId: "r", body: Uint8Array.of(1), timeoutMs: 10_000 };
    return callUnary(plane, server.address, call, new AbortController().signal, acceptTimeoutMs);
  }

  it("gives a callee up that does not take the call, and tells it so", async () => {
    let told: (() => void) | undefined;
    const wasTold = new Promise<void>((resolve) => {
      told = resolve;
    });
    const silent: CallHandler = (call) =>
      new Promise((_, reject) =>
        call.signal.addEventListener("abort", () => {
          told?.();
          reject(call.signal.reason);
        }),
      );
    await expect(ask(silent, 20)).rejects.toMatchObject({ code: "worker_unreachable" });
    await wasTold;
  });

  it("waits for the answer of one that took it", async () => {
    const answer = await ask(async (call) => {
      call.accept(0);
      await new Promise((resolve) => setTimeout(resolve, 60));
      call.send(Uint8Array.of(7));
    }, 20);
    expect([...answer]).toEqual([7]);
  });
});

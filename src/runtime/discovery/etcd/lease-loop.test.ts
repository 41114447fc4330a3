import { expect, test } from "vitest";
import type { EtcdClient } from "./etcd-client.ts";
import { LeaseLoop, type LeaseNews } from "./lease-loop.ts";

/** A store whose answers are scripted; the time stamps of the calls show when the loop came. */
class ScriptedStore {
  readonly calls: { readonly what: string; readonly atMs: number }[] = [];
  readonly #answer: (what: string) => unknown;
  #granted = 0;

  constructor(answer: (what: string) => unknown = () => undefined) {
    this.#answer = answer;
  }

  asClient(): EtcdClient {
    const call = async (what: string): Promise<unknown> => {
      this.calls.push({ what, atMs: performance.now() });
      const answer = this.#answer(what);
      if (answer instanceof Error) throw answer;
      return answer;
    };
    const client: Pick<EtcdClient, "grantLease" | "keepLeaseAlive" | "revokeLease" | "close"> = {
      grantLease: async () => {
        await call("grant");
        return `lease-${++this.#granted}`;
      },
      keepLeaseAlive: async () => (await call("keep")) !== false,
      revokeLease: async () => void (await call("revoke")),
      close: async () => {},
    };
    return client as EtcdClient;
  }
}

async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + 20_000;
  while (!condition()) {
    if (performance.now() > end) throw new Error("waited in vain");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

test("a renewal that fails is tried again while the lease lives, at ever shorter steps", async () => {
  let down = false;
  const store = new ScriptedStore((what) => (what === "keep" && down ? new Error("away") : undefined));
  const loop = new LeaseLoop(store.asClient(), 2, () => {});
  void loop.run();
  await until(() => store.calls.filter(({ what }) => what === "keep").length === 1);
  const renewedAtMs = store.calls.at(-1)!.atMs;
  down = true;
  await until(() => performance.now() > renewedAtMs + 2_000);
  const tries = store.calls.filter(
    ({ what, atMs }) => what === "keep" && atMs > renewedAtMs && atMs < renewedAtMs + 2_000,
  );
  expect(tries.length).toBeGreaterThanOrEqual(3);
  // Half of what is left, never less than 250 ms: there is a last try close before the end.
  expect(tries.at(-1)!.atMs).toBeGreaterThan(renewedAtMs + 1_400);
  await loop.stop();
}, 30_000);

test("a lost lease is replaced at once, and told; stop revokes the last one", async () => {
  let lost = false;
  const store = new ScriptedStore((what) => {
    if (what !== "keep" || lost) return undefined;
    lost = true;
    return false;
  });
  const news: LeaseNews[] = [];
  const loop = new LeaseLoop(store.asClient(), 2, (it) => news.push(it));
  void loop.run();
  await until(() => news.some((it) => it.kind === "lease" && it.id === "lease-2"));
  await loop.stop();
  expect(store.calls.map(({ what }) => what)).toEqual(["grant", "keep", "grant", "revoke"]);
});

test("without a store it tells so, goes on asking with growing delays, and stops at once", async () => {
  const store = new ScriptedStore(() => new Error("nobody there"));
  const news: LeaseNews[] = [];
  const loop = new LeaseLoop(store.asClient(), 2, (it) => news.push(it));
  void loop.run();
  await until(() => news.length >= 4);
  expect(news.every((it) => it.kind === "trouble" && it.reason === "nobody there")).toBe(true);
  const began = performance.now();
  await loop.stop();
  expect(performance.now() - began).toBeLessThan(1_000);
});

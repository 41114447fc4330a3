import { expect, test } from "vitest";
import { EtcdDiscovery } from "./etcd/etcd.ts";
import { FileDiscovery } from "./file.ts";
import { etcdEndpoints, openDiscovery } from "./open-discovery.ts";

test("each form opens its backend, without connecting", async () => {
  const file = openDiscovery("file:/tmp/never-made");
  const etcd = openDiscovery("etcd://127.0.0.1:1");
  expect([file instanceof FileDiscovery, etcd instanceof EtcdDiscovery]).toEqual([true, true]);
  await Promise.all([file.close(), etcd.close()]);
});

test("etcd addresses", () => {
  expect(etcdEndpoints("etcd://a")).toEqual(["http://a:2379"]);
  expect(etcdEndpoints("etcds://a:1,[::1]:2")).toEqual(["https://a:1", "https://[::1]:2"]);
});

test.each(["", "file:", "etcd:", "etcd://", "etcd://a b", "etcd://a:x", "etcd://a/b", "http://a", "etcd://u:pw@a"])(
  "%j is refused by name, without a password in the message",
  (address) => {
    expect(() => openDiscovery(address)).toThrow(
      expect.objectContaining({ code: "invalid_value", param: "discovery" }),
    );
    expect(() => openDiscovery(address)).toThrow(/^(?!.*pw)/);
  },
);

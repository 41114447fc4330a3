import type { NetworkInterfaceInfo } from "node:os";
import { expect, test } from "vitest";
import { advertisedHostOf, formatTcpAddress, hostProblem, parseTcpAddress } from "./address.ts";

test("addresses are read and written back, with names, IPv4 and IPv6", () => {
  for (const [host, port, text] of [
    ["127.0.0.1", 80, "tcp://127.0.0.1:80"],
    ["::1", 8080, "tcp://[::1]:8080"],
    ["fd00::12:3", 4567, "tcp://[fd00::12:3]:4567"],
    ["worker-7.example", 65535, "tcp://worker-7.example:65535"],
  ] as const) {
    expect(formatTcpAddress(host, port)).toBe(text);
    expect(parseTcpAddress(text)).toEqual({ host, port });
  }
});

test("what is no address is told why", () => {
  for (const [text, why] of [
    ["tcp://h", /form/],
    ["tcp://h:0", /port 0/],
    ["tcp://h:70000", /port 70000/],
    ["http://h:1", /form/],
    ["tcp://h:1/x", /form/],
    ["tcp://:1", /form/],
    ["tcp://a:b:1", /form/],
    ["tcp://::1:80", /form/],
    ["tcp://[fe80::1%eth0]:80", /zone/],
    ["tcp://[nonsense]:80", /IPv6/],
    ["", /form/],
  ] as const) {
    expect(parseTcpAddress(text)).toMatch(why);
  }
});

test("hosts to bind or advertise", () => {
  for (const good of ["0.0.0.0", "::", "::1", "localhost", "worker-7.example.", "a_b.c"]) {
    expect(hostProblem(good)).toBeUndefined();
  }
  expect(hostProblem("fe80::1%eth0")).toMatch(/zone/);
  for (const bad of ["", "[::1]", "a b", "host:80", "-x"]) expect(hostProblem(bad)).toMatch(/neither/);
});

const address = (family: "IPv4" | "IPv6", text: string, internal = false): NetworkInterfaceInfo =>
  ({ family, address: text, internal, netmask: "", mac: "", cidr: null, scopeid: 0 }) as NetworkInterfaceInfo;
const loopback = [address("IPv4", "127.0.0.1", true), address("IPv6", "::1", true)];

test("a wildcard advertises the first address that others reach: IPv4, then IPv6, else loopback", () => {
  const linkLocal = address("IPv6", "fe80::1");
  const both = { lo: loopback, eth0: [linkLocal, address("IPv6", "fd00::5"), address("IPv4", "10.0.0.5")] };
  const only6 = { lo: loopback, eth0: [linkLocal, address("IPv6", "fd00::5")] };
  const none = { lo: loopback, eth0: [linkLocal] };
  const reachable = (host: string) => ({ host, isLoopbackOnly: false });
  expect(advertisedHostOf("0.0.0.0", both)).toEqual(reachable("10.0.0.5"));
  expect(advertisedHostOf("::", both)).toEqual(reachable("10.0.0.5"));
  expect(advertisedHostOf("::", only6)).toEqual(reachable("fd00::5"));
  expect(advertisedHostOf("0:0:0:0:0:0:0:0", only6)).toEqual(reachable("fd00::5"));
  // Bound to IPv4 alone: an IPv6 address would lead nowhere.
  expect(advertisedHostOf("0.0.0.0", only6)).toEqual({ host: "127.0.0.1", isLoopbackOnly: true });
  expect(advertisedHostOf("::", none)).toEqual({ host: "::1", isLoopbackOnly: true });
  expect(advertisedHostOf("192.0.2.7", none)).toEqual(reachable("192.0.2.7"));
});

import { execFileSync } from "node:child_process";

/**
 * Hosts of their own on one machine: network namespaces with one link each to a common bridge. Needs root and iproute2.
 *
 *   this test  10.77.N.1 (bridge) --+-- a 10.77.N.2
 *                                   +-- b 10.77.N.3 ...
 */
export class Hosts {
  readonly #net: string;
  readonly #bridge: string;
  readonly #names: readonly string[];

  constructor(names: readonly string[]) {
    const number = (process.pid % 200) + 20;
    this.#net = `10.77.${number}`;
    this.#bridge = `st${number}`;
    this.#names = names;
    ip("link", "add", this.#bridge, "type", "bridge");
    ip("addr", "add", `${this.#net}.1/24`, "dev", this.#bridge);
    ip("link", "set", this.#bridge, "up");
    for (const name of names) {
      const space = this.#space(name);
      ip("netns", "add", space);
      ip("link", "add", this.#link(name), "type", "veth", "peer", "name", "eth0", "netns", space);
      ip("link", "set", this.#link(name), "master", this.#bridge);
      ip("link", "set", this.#link(name), "up");
      for (const args of [
        ["addr", "add", `${this.address(name)}/24`, "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["link", "set", "lo", "up"],
        ["route", "add", "default", "via", this.own],
      ]) {
        ip("netns", "exec", space, "ip", ...args);
      }
    }
  }

  /** Why this machine cannot have them; undefined when it can. */
  static obstacle(): string | undefined {
    const space = `st-probe-${process.pid}`;
    try {
      ip("netns", "add", space);
      ip("netns", "delete", space);
      return undefined;
    } catch (error) {
      return (error as Error).message;
    }
  }

  /** The address of the test itself, as the hosts see it. */
  get own(): string {
    return `${this.#net}.1`;
  }

  address(name: string): string {
    return `${this.#net}.${2 + this.#names.indexOf(name)}`;
  }

  /** What runs a command on the host. */
  on(name: string): readonly string[] {
    return ["ip", "netns", "exec", this.#space(name)];
  }

  /** Pulls the plug: nothing gets through, and nobody is told. */
  cut(name: string): void {
    ip("link", "set", this.#link(name), "down");
  }

  heal(name: string): void {
    ip("link", "set", this.#link(name), "up");
  }

  remove(): void {
    for (const name of this.#names) quietly(() => ip("netns", "delete", this.#space(name)));
    quietly(() => ip("link", "delete", this.#bridge));
  }

  #space(name: string): string {
    return `${this.#bridge}-${name}`;
  }

  #link(name: string): string {
    return `${this.#bridge}${name}`;
  }
}

function ip(...args: string[]): void {
  try {
    execFileSync("ip", args, { stdio: "pipe" });
  } catch (cause) {
    const { stderr } = cause as { stderr?: Buffer };
    throw new Error(`ip ${args.join(" ")}: ${stderr?.toString().trim() ?? String(cause)} (this test needs root)`, {
      cause,
    });
  }
}

function quietly(work: () => void): void {
  try {
    work();
  } catch {
    // It was not made, or is gone already.
  }
}

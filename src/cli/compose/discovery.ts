import { homedir, tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import type { Discovery } from "../../runtime/discovery/discovery.ts";
import { openDiscovery } from "../../runtime/discovery/open-discovery.ts";
import type { Logger } from "../../runtime/telemetry/log.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { configuredTls } from "./tls.ts";

/** Where the commands of one user meet when nobody says where: `serve` uses a private folder instead. */
export function userRuntimeFolder(): string {
  const { XDG_RUNTIME_DIR } = process.env;
  if (XDG_RUNTIME_DIR) return join(XDG_RUNTIME_DIR, "stator");
  const home = homedir();
  return home === "/" || home === "" ? join(tmpdir(), `stator-${userInfo().uid}`) : join(home, ".stator", "run");
}

/** The setting with its folder: `file:DIR` or `etcd://...`; `file` and `auto` are the user's folder. */
export function discoveryAddress(setting: string): string {
  return setting === "file" || setting === "auto" ? `file:${userRuntimeFolder()}` : setting;
}

/** Where processes meet. `memory` reaches no other process: an error that names the command. */
export function configuredDiscovery(config: Config, logger: Logger, command: string, address?: string): Discovery {
  const setting = config.get("discovery");
  if (setting === "memory") {
    throw new ConfigError(
      `stator ${command}: discovery memory reaches no other process; use --discovery file:DIR or etcd://HOST:PORT.`,
    );
  }
  const [username, password] = [config.get("discovery.etcdUser"), config.get("discovery.etcdPassword")];
  if (username === "" && password !== "") {
    throw new ConfigError("discovery.etcdUser is missing: discovery.etcdPassword is set.");
  }
  const tls = configuredTls(config);
  return openDiscovery(address ?? discoveryAddress(setting), {
    logger,
    etcd: { ...(username === "" ? {} : { username, password }), ...(tls === undefined ? {} : { tls }) },
    ttlSeconds: config.get("discovery.etcdTtlSeconds"),
  });
}

import { discoveryAddress } from "./compose/discovery.ts";
import type { RunningFrontend } from "./compose/running-frontend.ts";
import type { Config } from "./config/config.ts";

const MAX_NAMES = 16;

/** What a person needs to know when all is up. */
export function startScreen(facts: {
  config: Config;
  version: string;
  running: RunningFrontend;
  /** Names of the own worker processes; undefined = workers come from elsewhere. */
  workers?: readonly string[];
}): string {
  const { config, version, running, workers } = facts;
  const models = running.catalog.list();
  const described = models.map(({ card }) => `${card.name} (context ${card.contextLength})`);
  const first = models[0]?.card;
  const lines = [
    "",
    `  Stator ${version} is ready`,
    "",
    `  URL      ${running.url}/v1`,
    `  Model    ${described.join(", ") || "none yet"}`,
    workers === undefined
      ? `  Workers  those that join ${discoveryAddress(config.get("discovery"))}, router ${config.get("router.mode")}`
      : `  Workers  ${workers.length} (${listed(workers)}), engine ${config.get("engine.kind")}, router ${config.get("router.mode")}`,
    `  Admin    ${running.adminUrl}/workers`,
  ];
  if (first !== undefined) {
    const chat = first.chatTemplate !== undefined;
    const path = chat ? "/v1/chat/completions" : "/v1/completions";
    const prompt = chat ? '"messages":[{"role":"user","content":"Hello"}]' : '"prompt":"Hello"';
    lines.push(
      "",
      "  Try it:",
      `    curl ${running.url}${path} -H 'content-type: application/json' \\`,
      `      -d '{"model":${JSON.stringify(first.name)},${prompt},"max_tokens":64}'`,
      "",
      chat ? `    npx stator chat --url ${running.url}` : "",
      "",
      "  Ctrl-C stops gracefully.",
    );
  }
  return `${lines.join("\n")}\n\n`;
}

function listed(names: readonly string[]): string {
  return names.length <= MAX_NAMES ? names.join(", ") : `${names[0]} to ${names.at(-1)}`;
}

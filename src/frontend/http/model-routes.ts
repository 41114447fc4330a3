import { StatorError } from "../../protocol/errors.ts";
import type { ModelCatalog } from "../models/model-catalog.ts";
import type { ServedModel } from "../models/served-model.ts";

/** The body of GET /v1/models: what a request could reach now. */
export function modelList(catalog: ModelCatalog): string {
  return JSON.stringify({ object: "list", data: catalog.list().map(modelEntry) });
}

/** The body of GET /v1/models/{id}. `encodedId` as it stands in the path: it may contain slashes. */
export function oneModel(catalog: ModelCatalog, encodedId: string): string {
  const id = decode(encodedId);
  const model = id === undefined ? undefined : catalog.lookup(id);
  const shown = JSON.stringify((id ?? encodedId).slice(0, 200));
  if (model === undefined) {
    throw new StatorError("model_not_found", `There is no model ${shown}.`, { param: "model" });
  }
  if (!model.ready) {
    throw new StatorError("not_ready", `No worker of model ${shown} is ready.`, { retryAfterSeconds: 1 });
  }
  return JSON.stringify(modelEntry(model));
}

function modelEntry({ card, createdAtSeconds }: ServedModel): Record<string, unknown> {
  return {
    id: card.name,
    object: "model",
    created: createdAtSeconds,
    owned_by: "stator",
    context_window: card.contextLength,
    ...(card.aliases.length === 0 ? {} : { aliases: card.aliases }),
  };
}

function decode(encoded: string): string | undefined {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return undefined;
  }
}

import { setTimeout as pause } from "node:timers/promises";
import { closest } from "../../protocol/closest.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { RequestContext } from "./request-context.ts";
import { SEARCH_PAUSE_MS } from "./sequence.ts";
import type { Services } from "./services.ts";

/**
 * Does `work` with the model of that name. Work for which a worker was lost is done anew, with whatever workers the model
 * has then: it waits for them like a sequence that has lost its worker (`placement.ts`), as often and as long as that.
 */
export async function withModel<T>(
  services: Services,
  name: string,
  context: RequestContext,
  work: (model: ServedModel) => Promise<T>,
): Promise<T> {
  const { signal } = context;
  let losses = 0;
  let lost: { readonly error: StatorError; readonly until: number } | undefined;
  for (;;) {
    try {
      return await work(findModel(services, name, context));
    } catch (error) {
      if (!(error instanceof StatorError) || signal.aborted) throw error;
      if (error.code === "worker_lost") {
        if (++losses > services.migration.limit) throw error;
        lost = { error, until: performance.now() + services.timeouts.firstTokenMs };
        continue;
      }
      const mayCome = error.class.migratable || error.code === "not_ready";
      if (lost === undefined || !mayCome) throw error;
      if (performance.now() >= lost.until) throw lost.error;
    }
    await pause(SEARCH_PAUSE_MS, undefined, { signal }).catch(() => {
      throw signal.reason;
    });
  }
}

/** The model of that name. Throws `model_not_found`, or `not_ready` while the first picture of the fleet is incomplete. */
function findModel(services: Services, name: string, context: RequestContext): ServedModel {
  const model = services.catalog.lookup(name);
  if (model === undefined) {
    if (!services.catalog.synced) {
      throw new StatorError("not_ready", "The server is starting; its models are not known yet.", {
        retryAfterSeconds: 1,
      });
    }
    const shown = JSON.stringify(name.slice(0, 200));
    if (services.catalog.isKnown(name)) {
      throw new StatorError("not_ready", `No worker of ${shown} is ready.`, { retryAfterSeconds: 1 });
    }
    const near = closest(
      name,
      services.catalog.list().map(({ card }) => card.name),
    );
    const suggestion = near === undefined ? "" : ` Did you mean ${JSON.stringify(near)}?`;
    throw new StatorError("model_not_found", `There is no model ${shown}.${suggestion}`, { param: "model" });
  }
  context.record.model = model.card.name;
  return model;
}

import type { Admission } from "../admission/admission.ts";
import type { ModelCatalog } from "../models/model-catalog.ts";
import type { Expectations } from "../options.ts";

export interface HealthReport {
  readonly status: "ok" | "not_ready" | "draining";
  /** Models that a request could reach now. */
  readonly models: readonly string[];
  readonly readyWorkers: number;
  /** What is missing, one line each; empty when the status is ok. */
  readonly reasons: readonly string[];
  /** What does not keep the service from serving, but should be looked at. */
  readonly problems: readonly string[];
}

/** Ready means: all that this service was started for could serve a request now. */
export function healthReport(
  catalog: ModelCatalog,
  admission: Admission,
  expected: Expectations,
  further: readonly string[],
): HealthReport {
  const failing = catalog.list().filter((model) => {
    return model.workerIds().every((id) => catalog.inhibitions.reasonOf(id) !== undefined);
  });
  const models = catalog.list().flatMap((model) => (failing.includes(model) ? [] : model.card.name));
  const readyWorkers = catalog.workers().filter((worker) => worker.state === "ready").length;
  const reasons: string[] = [...further];
  for (const { card } of failing) reasons.push(`no worker of model ${JSON.stringify(card.name)} takes calls`);
  if (!catalog.synced) reasons.push("discovery has not delivered its first picture yet");
  if (typeof expected.models === "number") {
    if (models.length < expected.models) reasons.push(`${models.length} of ${expected.models} models are ready`);
  } else {
    for (const name of expected.models) {
      if (!models.includes(name)) reasons.push(`model ${JSON.stringify(name)} is not ready`);
    }
  }
  if (readyWorkers < expected.workers) reasons.push(`${readyWorkers} of ${expected.workers} workers are ready`);
  if (admission.draining) reasons.unshift("the server is shutting down");
  return {
    status: admission.draining ? "draining" : reasons.length > 0 ? "not_ready" : "ok",
    models,
    readyWorkers,
    reasons,
    problems: catalog.problems(),
  };
}

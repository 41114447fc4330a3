import { Gauge, type Registry } from "prom-client";
import type { Admission } from "./admission/admission.ts";
import type { HealthReport } from "./http/health.ts";
import type { ModelCatalog } from "./models/model-catalog.ts";

/** The fleet as the catalog has it, read at each scrape: what alerts are made of. */
export function registerFleetMetrics(
  registry: Registry,
  parts: { catalog: ModelCatalog; admission: Admission; health: () => HealthReport; expectedWorkers: number },
): void {
  const { catalog, admission, health, expectedWorkers } = parts;
  const registers = [registry];
  const gauge = (name: string, help: string, read: () => number): void => {
    new Gauge({
      name: `stator_frontend_${name}`,
      help,
      registers,
      collect() {
        this.set(read());
      },
    });
  };
  gauge("healthy", "1 when GET /health is 200", () => (health().status === "ok" ? 1 : 0));
  gauge("draining", "1 while shutting down", () => (admission.draining ? 1 : 0));
  gauge("workers_expected", "Workers that have to be ready for the service to be healthy", () => expectedWorkers);
  const inhibitedHelp = "Workers that failed a call and get no new ones until a probe reaches them";
  gauge("workers_inhibited", inhibitedHelp, () => catalog.inhibitions.size);
  new Gauge({
    name: "stator_frontend_workers",
    help: "Workers in discovery, by model and state: ready, loading, conflict",
    labelNames: ["model", "state"],
    registers,
    collect() {
      this.reset();
      for (const { record, state } of catalog.workers()) this.inc({ model: record.card.name, state });
    },
  });
}

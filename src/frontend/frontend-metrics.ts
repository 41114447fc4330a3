import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import type { StatorError } from "../protocol/errors.ts";
import type { Usage } from "../protocol/generate.ts";
import type { MigrationFailure, MigrationType } from "./pipeline/migrated.ts";

const secondsBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120];
const itlBuckets = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 5];
/**
 * Workers that keep their series, of about 4 KB in each scrape; ids of workers that came and went must not grow memory for
 * ever, and a scrape of thousands would stop all streams for a third of a second.
 */
const MAX_WORKERS = 1_000;

/** What one request looked like at its end. */
export interface FinishedRequest {
  readonly endpoint: string;
  /** undefined = no model that exists; all such names share one label value. */
  readonly model: string | undefined;
  readonly status: number;
  readonly error: StatorError | undefined;
  readonly seconds: number;
  readonly timeToFirstTokenSeconds: number | undefined;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
}

/** The frontend's numbers, with label look-ups done ahead of the hot path. */
export class FrontendMetrics {
  readonly #requests: Counter<"model" | "endpoint" | "status">;
  readonly #errors: Counter<"code" | "class">;
  readonly #inFlight: Gauge<"endpoint">;
  readonly #ttft: Histogram<"model">;
  readonly #itl: Histogram<"model" | "worker">;
  readonly #duration: Histogram<"model" | "endpoint">;
  readonly #promptTokens: Counter<"model">;
  readonly #completionTokens: Counter<"model">;
  readonly #cachedTokens: Counter<"model">;
  readonly #migrations: Counter<"type">;
  readonly #migrationsFailed: Counter<"reason">;
  readonly #workerRequests: Counter<"model" | "worker">;
  readonly #workerInFlight: Gauge<"model" | "worker">;
  readonly #workerTtft: Histogram<"model" | "worker">;
  readonly #workerTokens: Counter<"model" | "worker" | "kind">;
  readonly #workers = new Map<string, WorkerMetrics>();

  constructor(registry: Registry) {
    const registers = [registry];
    const counter = <Label extends string>(name: string, help: string, labelNames: Label[]) =>
      new Counter({ name: `stator_frontend_${name}`, help, labelNames, registers });
    const gauge = <Label extends string>(name: string, help: string, labelNames: Label[]) =>
      new Gauge({ name: `stator_frontend_${name}`, help, labelNames, registers });
    const histogram = <Label extends string>(name: string, help: string, labelNames: Label[], buckets: number[]) =>
      new Histogram({ name: `stator_frontend_${name}`, help, labelNames, buckets, registers });

    this.#requests = counter("requests_total", "Requests answered", ["model", "endpoint", "status"]);
    this.#errors = counter("errors_total", "Requests that ended with an error", ["code", "class"]);
    this.#inFlight = gauge("requests_in_flight", "Requests being served", ["endpoint"]);
    this.#ttft = histogram("time_to_first_token_seconds", "Arrival to first token", ["model"], secondsBuckets);
    const perWorker: ("model" | "worker")[] = ["model", "worker"];
    this.#itl = histogram("inter_token_latency_seconds", "Time per token after the first", perWorker, itlBuckets);
    this.#duration = histogram(
      "request_duration_seconds",
      "Arrival to last byte",
      ["model", "endpoint"],
      secondsBuckets,
    );
    this.#promptTokens = counter("prompt_tokens_total", "Prompt tokens of answered requests", ["model"]);
    this.#completionTokens = counter("completion_tokens_total", "Tokens generated", ["model"]);
    this.#cachedTokens = counter("cached_tokens_total", "Prompt tokens taken from the engines' caches", ["model"]);
    const migrationsHelp = "Sequences that went on with another worker: new_request = before its first token, ongoing";
    this.#migrations = counter("migrations_total", migrationsHelp, ["type"]);
    const failedHelp = "Sequences that ended because no other worker could go on with them";
    this.#migrationsFailed = counter("migrations_failed_total", failedHelp, ["reason"]);
    this.#workerRequests = counter("worker_requests_total", "Sequences sent to the worker", perWorker);
    this.#workerInFlight = gauge("worker_requests_in_flight", "Sequences with the worker", perWorker);
    const ttftHelp = "Sending to the worker until its first token";
    this.#workerTtft = histogram("worker_time_to_first_token_seconds", ttftHelp, perWorker, secondsBuckets);
    const tokensHelp = "Tokens of finished sequences: prompt, completion, cached";
    this.#workerTokens = counter("worker_tokens_total", tokensHelp, ["model", "worker", "kind"]);
  }

  requestStarted(endpoint: string): void {
    this.#inFlight.labels(endpoint).inc();
  }

  requestFinished(request: FinishedRequest): void {
    const { endpoint, model = "unknown", error } = request;
    this.#inFlight.labels(endpoint).dec();
    this.#requests.labels(model, endpoint, String(request.status)).inc();
    this.#duration.labels(model, endpoint).observe(request.seconds);
    if (error !== undefined) this.requestFailed(error);
    if (request.timeToFirstTokenSeconds !== undefined)
      this.#ttft.labels(model).observe(request.timeToFirstTokenSeconds);
    if (request.promptTokens > 0) this.#promptTokens.labels(model).inc(request.promptTokens);
    if (request.completionTokens > 0) this.#completionTokens.labels(model).inc(request.completionTokens);
    if (request.cachedTokens > 0) this.#cachedTokens.labels(model).inc(request.cachedTokens);
  }

  /** Also for what never became a request: broken HTTP. */
  requestFailed(error: StatorError): void {
    this.#errors.labels(error.code, error.class.type).inc();
  }

  migrated(type: MigrationType): void {
    this.#migrations.labels(type).inc();
  }

  migrationFailed(reason: MigrationFailure): void {
    this.#migrationsFailed.labels(reason).inc();
  }

  /** The numbers of one worker, with its labels looked up once. */
  worker(model: string, workerId: string): WorkerMetrics {
    const key = `${model}\0${workerId}`;
    let metrics = this.#workers.get(key);
    if (metrics === undefined) {
      const worker = this.#workers.size < MAX_WORKERS ? workerId : "other";
      const tokens = (kind: string) => this.#workerTokens.labels(model, worker, kind);
      metrics = new WorkerMetrics({
        requests: this.#workerRequests.labels(model, worker),
        inFlight: this.#workerInFlight.labels(model, worker),
        ttft: this.#workerTtft.labels(model, worker),
        itl: this.#itl.labels(model, worker),
        promptTokens: tokens("prompt"),
        completionTokens: tokens("completion"),
        cachedTokens: tokens("cached"),
      });
      if (worker === workerId) this.#workers.set(key, metrics);
    }
    return metrics;
  }
}

interface WorkerSeries {
  readonly requests: Counter.Internal;
  readonly inFlight: Gauge.Internal<string>;
  readonly ttft: Histogram.Internal<string>;
  readonly itl: Histogram.Internal<string>;
  readonly promptTokens: Counter.Internal;
  readonly completionTokens: Counter.Internal;
  readonly cachedTokens: Counter.Internal;
}

/** What one worker does for one model. */
export class WorkerMetrics {
  readonly #series: WorkerSeries;

  constructor(series: WorkerSeries) {
    this.#series = series;
  }

  started(): void {
    this.#series.requests.inc();
    this.#series.inFlight.inc();
  }

  /** Once for each `started`. */
  ended(): void {
    this.#series.inFlight.dec();
  }

  firstToken(elapsedMs: number): void {
    this.#series.ttft.observe(elapsedMs / 1000);
  }

  /** `elapsedMs` since the tokens before. Once per message. */
  tokensArrived(elapsedMs: number, count: number): void {
    this.#series.itl.observe(elapsedMs / 1000 / count);
  }

  finished(usage: Usage): void {
    this.#series.promptTokens.inc(usage.promptTokens);
    this.#series.completionTokens.inc(usage.completionTokens);
    this.#series.cachedTokens.inc(usage.cachedTokens);
  }
}

import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import { toStatorError } from "../../protocol/errors.ts";
import type { CallHandler, IncomingCall } from "../request-plane/plane.ts";

/** Where a served endpoint is in the fleet; the labels of all its metrics. */
export interface EndpointPlace {
  readonly namespace: string;
  readonly component: string;
  readonly endpoint: string;
  readonly workerId: string;
}

const labelNames = ["namespace", "component", "endpoint", "worker_id"] as const;
const durations = [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800];

/** What the served endpoints of this process do. Once per registry. */
export class EndpointMetrics {
  readonly #requests: Counter<(typeof labelNames)[number]>;
  readonly #errors: Counter<(typeof labelNames)[number] | "code">;
  readonly #inFlight: Gauge<(typeof labelNames)[number]>;
  readonly #durations: Histogram<(typeof labelNames)[number]>;
  readonly #firstMessages: Histogram<(typeof labelNames)[number]>;
  readonly #received: Counter<(typeof labelNames)[number]>;
  readonly #sent: Counter<(typeof labelNames)[number]>;
  /** Look-ups done: thousands of simulated workers may share their labels. */
  readonly #series = new Map<string, EndpointSeries>();

  constructor(registry: Registry) {
    const registers = [registry];
    const name = (what: string): string => `stator_endpoint_${what}`;
    const counter = (what: string, help: string) => new Counter({ name: name(what), help, labelNames, registers });
    this.#requests = counter("requests_total", "Calls that have ended");
    this.#received = counter("request_bytes_total", "Bytes of request bodies");
    this.#sent = counter("response_bytes_total", "Bytes of messages sent back");
    this.#errors = new Counter({
      name: name("errors_total"),
      help: "Calls that ended with an error, a client that left included",
      labelNames: [...labelNames, "code"],
      registers,
    });
    this.#inFlight = new Gauge({ name: name("requests_in_flight"), help: "Calls that run", labelNames, registers });
    const histogram = (what: string, help: string) =>
      new Histogram({ name: name(what), help, labelNames, buckets: durations, registers });
    this.#durations = histogram("request_duration_seconds", "From the call to its end");
    this.#firstMessages = histogram("time_to_first_message_seconds", "From the call to its first message");
  }

  /** The handler, counted. Handlers of one place are counted together. */
  measured(place: EndpointPlace, handler: CallHandler): CallHandler {
    const { labels, inFlight, requests, received, sent, duration, firstMessage } = this.#seriesOf(place);
    return async (call) => {
      const startedAtMs = performance.now();
      const seconds = (): number => (performance.now() - startedAtMs) / 1000;
      const metered = new MeteredCall(call, () => firstMessage.observe(seconds()));
      inFlight.inc();
      received.inc(call.body.length);
      try {
        await handler(metered);
      } catch (error) {
        this.#errors.inc({ ...labels, code: toStatorError(error, () => "").code });
        throw error;
      } finally {
        inFlight.dec();
        requests.inc();
        sent.inc(metered.sentBytes);
        duration.observe(seconds());
      }
    };
  }

  #seriesOf({ namespace, component, endpoint, workerId }: EndpointPlace): EndpointSeries {
    const key = `${namespace}/${component}/${endpoint}/${workerId}`;
    let series = this.#series.get(key);
    if (series === undefined) {
      const labels = { namespace, component, endpoint, worker_id: workerId };
      series = {
        labels,
        inFlight: this.#inFlight.labels(labels),
        requests: this.#requests.labels(labels),
        received: this.#received.labels(labels),
        sent: this.#sent.labels(labels),
        duration: this.#durations.labels(labels),
        firstMessage: this.#firstMessages.labels(labels),
      };
      this.#series.set(key, series);
    }
    return series;
  }
}

interface EndpointSeries {
  readonly labels: Record<(typeof labelNames)[number], string>;
  readonly inFlight: Gauge.Internal<string>;
  readonly requests: Counter.Internal;
  readonly received: Counter.Internal;
  readonly sent: Counter.Internal;
  readonly duration: Histogram.Internal<string>;
  readonly firstMessage: Histogram.Internal<string>;
}

/** Counts what goes out; per message one addition, no label look-up. */
class MeteredCall implements IncomingCall {
  readonly #call: IncomingCall;
  readonly #onFirst: () => void;
  sentBytes = 0;
  #begun = false;

  constructor(call: IncomingCall, onFirst: () => void) {
    this.#call = call;
    this.#onFirst = onFirst;
  }

  get endpoint(): string {
    return this.#call.endpoint;
  }

  get requestId(): string {
    return this.#call.requestId;
  }

  get body(): Uint8Array {
    return this.#call.body;
  }

  get timeoutMs(): number {
    return this.#call.timeoutMs;
  }

  get traceparent(): string | undefined {
    return this.#call.traceparent;
  }

  get signal(): AbortSignal {
    return this.#call.signal;
  }

  accept(queuePosition: number): void {
    this.#call.accept(queuePosition);
  }

  send(message: Uint8Array): boolean {
    if (!this.#begun) {
      this.#begun = true;
      this.#onFirst();
    }
    this.sentBytes += message.length;
    return this.#call.send(message);
  }

  ready(): Promise<void> {
    return this.#call.ready();
  }
}

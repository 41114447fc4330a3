import { StatorError } from "../../protocol/errors.ts";

export interface TracingOptions {
  /** Base address of an OTLP/HTTP collector, for example http://127.0.0.1:4318. */
  readonly otlpEndpoint: string;
  readonly serviceName: string;
}

/**
 * Switches span export on. Everywhere else only @opentelemetry/api is used, which does nothing without this. The SDK
 * packages are optional: a missing one gives a clear error. Returns the way to flush and stop.
 */
export async function startTracing({ otlpEndpoint, serviceName }: TracingOptions): Promise<() => Promise<void>> {
  const [{ trace }, sdk, exporter, propagators] = await Promise.all([
    import("@opentelemetry/api"),
    optional(() => import("@opentelemetry/sdk-trace-base")),
    optional(() => import("@opentelemetry/exporter-trace-otlp-http")),
    optional(() => import("@opentelemetry/resources")),
  ]);
  const url = `${otlpEndpoint.replace(/\/+$/, "")}/v1/traces`;
  const provider = new sdk.BasicTracerProvider({
    resource: propagators.resourceFromAttributes({ "service.name": serviceName }),
    spanProcessors: [new sdk.BatchSpanProcessor(new exporter.OTLPTraceExporter({ url, timeoutMillis: 5_000 }))],
  });
  trace.setGlobalTracerProvider(provider);
  return () => provider.shutdown();
}

async function optional<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    throw new StatorError(
      "not_ready",
      "Tracing needs packages that are not installed: npm install @opentelemetry/sdk-trace-base @opentelemetry/resources @opentelemetry/exporter-trace-otlp-http",
      { cause },
    );
  }
}

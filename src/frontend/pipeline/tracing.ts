import { type Context, isSpanContextValid, ROOT_CONTEXT, type Span, SpanStatusCode, trace } from "@opentelemetry/api";
import { catalogued } from "./catalogued.ts";

const tracer = trace.getTracer("stator-frontend");

/** Runs `work` inside a child span. Costs next to nothing while no SDK is installed. */
export async function inSpan<T>(name: string, parent: Context, work: (span: Span) => Promise<T>): Promise<T> {
  const span = tracer.startSpan(name, {}, parent);
  try {
    return await work(span);
  } catch (thrown) {
    span.setStatus({ code: SpanStatusCode.ERROR, message: catalogued(thrown).code });
    throw thrown;
  } finally {
    span.end();
  }
}

const traceparentPattern = /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})/;

/** The caller's span as a parent for ours. Read by hand: without an SDK the API's propagator does nothing. */
export function contextFromTraceparent(header: string | undefined): Context {
  const match = header === undefined ? null : traceparentPattern.exec(header);
  if (match === null) return ROOT_CONTEXT;
  const spanContext = {
    traceId: match[1]!,
    spanId: match[2]!,
    traceFlags: Number.parseInt(match[3]!, 16) & 1,
    isRemote: true,
  };
  return isSpanContextValid(spanContext) ? trace.setSpanContext(ROOT_CONTEXT, spanContext) : ROOT_CONTEXT;
}

/** W3C traceparent of a span; undefined when there is no trace. */
export function traceparentOf(span: Span): string | undefined {
  const { traceId, spanId, traceFlags } = span.spanContext();
  if (!isSpanContextValid({ traceId, spanId, traceFlags })) return undefined;
  return `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, "0")}`;
}

/** The span of the whole request. */
export function startRequestSpan(name: string, parent: Context): { span: Span; context: Context } {
  const span = tracer.startSpan(name, { kind: 1 }, parent);
  return { span, context: trace.setSpan(parent, span) };
}

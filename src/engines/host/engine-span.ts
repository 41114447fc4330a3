import { ROOT_CONTEXT, type Span, SpanStatusCode, TraceFlags, trace } from "@opentelemetry/api";
import type { Finish } from "../../protocol/generate.ts";

const tracer = trace.getTracer("stator");
const traceparentPattern = /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})/;

/** The span of one generation, child of the caller's (W3C traceparent). Costs next to nothing without an SDK. */
export function startEngineSpan(traceparent: string | undefined, requestId: string, promptTokens: number): Span {
  const match = traceparentPattern.exec(traceparent ?? "");
  const parent = match
    ? trace.setSpanContext(ROOT_CONTEXT, {
        traceId: match[1]!,
        spanId: match[2]!,
        traceFlags: Number.parseInt(match[3]!, 16) & TraceFlags.SAMPLED,
        isRemote: true,
      })
    : ROOT_CONTEXT;
  return tracer.startSpan(
    "engine.generate",
    { attributes: { "stator.request_id": requestId, "gen_ai.usage.input_tokens": promptTokens } },
    parent,
  );
}

export function endEngineSpan(span: Span, finish: Finish | undefined, error: Error | undefined): void {
  if (finish) {
    span.setAttribute("gen_ai.usage.output_tokens", finish.usage.completionTokens);
    span.setAttribute("gen_ai.response.finish_reasons", [finish.reason]);
  }
  if (error) span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
  span.end();
}

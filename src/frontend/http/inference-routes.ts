import { type Span, SpanStatusCode } from "@opentelemetry/api";
import { StatorError } from "../../protocol/errors.ts";
import type { Admission } from "../admission/admission.ts";
import type { HttpOptions } from "../options.ts";
import type { Answer, AnswerFacts } from "../pipeline/answer.ts";
import { catalogued } from "../pipeline/catalogued.ts";
import type { ChatRequest, CompletionRequest } from "../pipeline/client-request.ts";
import type { RequestContext, RequestRecord } from "../pipeline/request-context.ts";
import { serveEmbeddings } from "../pipeline/serve-embeddings.ts";
import { serveRequest } from "../pipeline/serve-request.ts";
import type { Services } from "../pipeline/services.ts";
import { contextFromTraceparent, startRequestSpan } from "../pipeline/tracing.ts";
import { StreamAnswer, UnaryAnswer } from "./answers.ts";
import { ChatFormat } from "./chat-response.ts";
import { CompletionFormat } from "./completion-response.ts";
import { embeddingBody } from "./embedding-response.ts";
import type { Exchange } from "./exchange.ts";
import { checkBodyHeaders, readJsonBody } from "./json-body.ts";
import { timeoutFrom, workerIdFrom } from "./request-headers.ts";
import { parseChatRequest } from "./request-schema/chat-request.ts";
import { parseCompletionRequest } from "./request-schema/completion-request.ts";
import { parseEmbeddingRequest } from "./request-schema/embedding-request.ts";
import type { Parsed, ParseLimits } from "./request-schema/parse.ts";
import { isAscii, SseStream } from "./sse.ts";

export type InferenceEndpoint = "chat" | "completions" | "embeddings";

/** The three POST routes: from a request on the wire to its last byte. */
export class InferenceRoutes {
  readonly #services: Services;
  readonly #admission: Admission;
  readonly #http: HttpOptions;

  constructor(services: Services, admission: Admission, http: HttpOptions) {
    this.#services = services;
    this.#admission = admission;
    this.#http = http;
  }

  /** Never rejects: every failure ends as an answer. */
  async serve(endpoint: InferenceEndpoint, exchange: Exchange): Promise<void> {
    const record = newRecord(endpoint);
    const { span, context } = startRequestSpan(
      `POST ${exchange.path}`,
      contextFromTraceparent(headerOf(exchange, "traceparent")),
    );
    this.#services.metrics.requestStarted(endpoint);
    const call: Call = { exchange, record, trace: context, stream: undefined, ignored: [] };
    try {
      const ticket = this.#admission.enter();
      try {
        await this.#admitted(endpoint, call);
      } catch (thrown) {
        await this.#fail(call, catalogued(thrown));
      } finally {
        await exchange.whenOver();
        ticket.close();
      }
    } catch (thrown) {
      await this.#fail(call, catalogued(thrown)); // not admitted
      await exchange.whenOver();
    } finally {
      this.#finished(call, span);
    }
  }

  async #admitted(endpoint: InferenceEndpoint, call: Call): Promise<void> {
    const { exchange, record } = call;
    const deadlineAt = exchange.arrivedAt + timeoutFrom(exchange.request, this.#services.timeouts.totalMs);
    const wantedWorkerId = workerIdFrom(exchange.request);
    const timer = this.#services.wheel.schedule(deadlineAt - performance.now(), () =>
      exchange.giveUp(new StatorError("deadline_exceeded", "The request's time is over.")),
    );
    try {
      const context: RequestContext = {
        id: exchange.id,
        arrivedAt: exchange.arrivedAt,
        deadlineAt,
        signal: exchange.signal,
        wantedWorkerId,
        trace: call.trace,
        record,
      };
      if (endpoint === "embeddings") await this.#embeddings(call, context);
      else {
        await serveRequest(
          this.#services,
          () =>
            this.#read<ChatRequest | CompletionRequest>(
              call,
              endpoint === "chat" ? parseChatRequest : parseCompletionRequest,
            ),
          context,
          (facts) => this.#answer(call, endpoint, facts),
        );
      }
    } finally {
      timer.cancel();
    }
  }

  async #embeddings(call: Call, context: RequestContext): Promise<void> {
    const request = await this.#read(call, parseEmbeddingRequest);
    const embeddings = await serveEmbeddings(this.#services, request, context);
    call.exchange.sendJson(200, embeddingBody(embeddings, request.encodingFormat), headOf(call));
  }

  /** The body, checked. */
  async #read<Request>(
    call: Call,
    parse: (body: unknown, rawBody: () => string, limits: ParseLimits) => Parsed<Request>,
  ): Promise<Request> {
    const { request, response } = call.exchange;
    checkBodyHeaders(request, this.#http);
    if (call.exchange.expectsContinue) response.writeContinue();
    const body = await readJsonBody(request, this.#http, call.exchange.signal);
    const parsed = parse(body.value, () => body.text, this.#http);
    call.ignored = parsed.ignored;
    return parsed.request;
  }

  #answer(call: Call, endpoint: "chat" | "completions", facts: AnswerFacts): Answer {
    const { includeUsage, continuousUsage, stream } = facts.generation;
    call.record.stream = stream;
    const options = {
      id: call.exchange.id,
      createdAtSeconds: Math.floor(Date.now() / 1000),
      model: facts.model,
      includeUsage,
    };
    const format =
      endpoint === "chat" ? new ChatFormat(options, facts.table) : new CompletionFormat(options, facts.table);
    const head = (): Record<string, string> => {
      call.record.workerId = facts.workerId();
      return headOf(call);
    };
    if (!stream) return new UnaryAnswer(format, (body) => call.exchange.sendJson(200, body, head()));
    call.stream = new SseStream(call.exchange.response, {
      bufferBytes: this.#http.slowReaderBufferBytes,
      stallTimeoutMs: this.#http.slowReaderTimeoutMs,
      wheel: this.#services.wheel,
      onResume: facts.onResume,
      onStalled: facts.onStalled,
    });
    const asciiFormat = facts.generation.topLogprobs === undefined && isAscii(facts.model);
    return new StreamAnswer(call.stream, format, { includeUsage, continuousUsage, asciiFormat, head });
  }

  /** An error frame when the stream has begun, an error body before that, nothing when the client has gone. */
  async #fail(call: Call, error: StatorError): Promise<void> {
    const { exchange, record, stream } = call;
    record.error = error;
    if (error.code === "internal_error") {
      const id = error.id ?? exchange.id;
      this.#services.logger.error(
        { err: error.cause ?? error, errorId: id, requestId: exchange.requestId },
        "internal error",
      );
    }
    if (exchange.response.headersSent) stream?.fail(error);
    else await exchange.sendError(error, headOf(call));
  }

  #finished({ exchange, record }: Call, span: Span): void {
    const now = performance.now();
    if (record.error === undefined && exchange.signal.aborted) record.error = catalogued(exchange.signal.reason);
    const { error, firstTokenAt } = record;
    const status = error?.class.status ?? 200;
    const ttftMs = firstTokenAt === undefined ? undefined : firstTokenAt - exchange.arrivedAt;
    this.#services.metrics.requestFinished({
      endpoint: record.endpoint,
      model: record.model,
      status,
      error,
      seconds: (now - exchange.arrivedAt) / 1000,
      timeToFirstTokenSeconds: ttftMs === undefined ? undefined : ttftMs / 1000,
      promptTokens: record.promptTokens,
      completionTokens: record.completionTokens,
      cachedTokens: record.cachedTokens,
    });
    this.#services.logger[status >= 500 ? "warn" : "info"](
      {
        requestId: exchange.requestId,
        ...(exchange.id === exchange.requestId ? {} : { id: exchange.id }),
        endpoint: record.endpoint,
        model: record.model,
        status,
        stream: record.stream,
        workerId: record.workerId,
        promptTokens: record.promptTokens,
        completionTokens: record.completionTokens,
        cachedTokens: record.cachedTokens,
        ttftMs: ttftMs === undefined ? undefined : Math.round(ttftMs * 10) / 10,
        durationMs: Math.round((now - exchange.arrivedAt) * 10) / 10,
        error: error?.code,
        errorId: error?.id,
      },
      "request",
    );
    span.setAttributes({ "http.response.status_code": status, "stator.request_id": exchange.requestId });
    if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: error.code });
    span.end();
  }
}

/** What is known of one call while it runs. */
interface Call {
  readonly exchange: Exchange;
  readonly record: RequestRecord;
  readonly trace: RequestContext["trace"];
  stream: SseStream | undefined;
  ignored: readonly string[];
}

function newRecord(endpoint: string): RequestRecord {
  return {
    endpoint,
    model: undefined,
    stream: false,
    promptTokens: 0,
    completionTokens: 0,
    cachedTokens: 0,
    firstTokenAt: undefined,
    workerId: undefined,
    error: undefined,
  };
}

function headOf({ record, ignored }: Call): Record<string, string> {
  return {
    ...(record.workerId === undefined ? {} : { "x-stator-worker-id": record.workerId }),
    ...(ignored.length === 0 ? {} : { "x-stator-ignored": ignored.join(", ") }),
  };
}

function headerOf(exchange: Exchange, name: string): string | undefined {
  const value = exchange.request.headers[name];
  return typeof value === "string" ? value : undefined;
}

import { decodeFloats, encodeTokens } from "../../protocol/codec.ts";
import { StatorError } from "../../protocol/errors.ts";
import { calledEndpoint, workerEndpoints } from "../../protocol/instance.ts";
import { callUnary } from "../../runtime/request-plane/call-unary.ts";
import type { ServedModel } from "../models/served-model.ts";
import { asClientSees } from "../models/worker-error.ts";
import { catalogued } from "./catalogued.ts";
import type { EmbeddingRequest } from "./client-request.ts";
import { withModel } from "./find-model.ts";
import { type TokenizedPrompt, tokenizePrompts } from "./preprocess.ts";
import type { RequestContext } from "./request-context.ts";
import type { Services } from "./services.ts";
import { inSpan, traceparentOf } from "./tracing.ts";

/** Inputs of one request that are with workers at once. */
const MAX_PARALLEL = 8;
const MAX_ATTEMPTS = 3;

export interface Embeddings {
  readonly model: string;
  /** One per input, in order. */
  readonly vectors: readonly Float32Array[];
  readonly promptTokens: number;
}

/** The life of an embedding request. Rejects with a StatorError. */
export async function serveEmbeddings(
  services: Services,
  request: EmbeddingRequest,
  context: RequestContext,
): Promise<Embeddings> {
  const { model, prompts } = await withModel(services, request.model, context, async (model) => {
    checkEmbedding(request, model);
    return await inSpan("preprocess", context.trace, async () => {
      const tokenizer = await model.tokenizer(context.signal);
      return { model, prompts: await tokenizePrompts(request.inputs, model, tokenizer, context.signal) };
    });
  });
  context.record.promptTokens = prompts.reduce((sum, prompt) => sum + prompt.tokens.length, 0);
  const vectors = await inSpan("embed", context.trace, (span) =>
    embedAll(services, model, prompts, context, traceparentOf(span)),
  );
  return { model: model.card.name, vectors, promptTokens: context.record.promptTokens };
}

function checkEmbedding({ dimensions }: EmbeddingRequest, { card }: ServedModel): void {
  const name = JSON.stringify(card.name);
  if (card.embeddingLength === undefined) {
    throw new StatorError("invalid_value", `The model ${name} makes no embeddings.`, { param: "model" });
  }
  if (dimensions !== undefined && dimensions !== card.embeddingLength) {
    throw new StatorError(
      "unsupported_parameter",
      `The embeddings of model ${name} have ${card.embeddingLength} dimensions, not ${dimensions}, and are not shortened.`,
      { param: "dimensions" },
    );
  }
}

async function embedAll(
  services: Services,
  model: ServedModel,
  prompts: readonly TokenizedPrompt[],
  context: RequestContext,
  traceparent: string | undefined,
): Promise<Float32Array[]> {
  const vectors = new Array<Float32Array>(prompts.length);
  const failed = new AbortController();
  const signal = AbortSignal.any([context.signal, failed.signal]);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < prompts.length && !signal.aborted) {
      const index = next++;
      try {
        vectors[index] = await embedOne(services, model, prompts[index]!, context, index, traceparent, signal);
      } catch (thrown) {
        failed.abort(catalogued(thrown)); // the first failure ends the others
        throw thrown;
      }
    }
    if (context.signal.aborted) throw context.signal.reason;
  };
  const outcomes = await Promise.allSettled(Array.from({ length: Math.min(MAX_PARALLEL, prompts.length) }, worker));
  if (context.signal.aborted) throw context.signal.reason;
  if (failed.signal.aborted) throw failed.signal.reason;
  for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  return vectors;
}

async function embedOne(
  services: Services,
  model: ServedModel,
  prompt: TokenizedPrompt,
  context: RequestContext,
  index: number,
  traceparent: string | undefined,
  signal: AbortSignal,
): Promise<Float32Array> {
  const { router, plane, metrics, timeouts } = services;
  const exclude = new Set<string>();
  let refusal: StatorError | undefined;
  for (let attempt = 1; ; attempt++) {
    if (refusal !== undefined && !model.workerIds().some((id) => !exclude.has(id))) throw refusal;
    const selection = router.select(model.candidates(context.wantedWorkerId, exclude), {
      model: model.card.name,
      promptTokens: prompt.tokens.length,
      exclude,
      ...(context.wantedWorkerId === undefined ? {} : { workerId: context.wantedWorkerId }),
    });
    const { workerId } = selection;
    context.record.workerId ??= workerId;
    const worker = metrics.worker(model.card.name, workerId);
    worker.started();
    const record = model.worker(workerId);
    const mayTryAnother =
      attempt < MAX_ATTEMPTS && context.wantedWorkerId === undefined && model.hasOther(workerId, exclude);
    try {
      const answer = await callUnary(
        plane,
        record?.address ?? "",
        {
          endpoint: record ? calledEndpoint(record, workerEndpoints.embed) : workerEndpoints.embed,
          requestId: `${context.id}-${index}.${attempt}`,
          body: encodeTokens(prompt.tokens),
          timeoutMs: Math.max(1, Math.ceil(context.deadlineAt - performance.now())),
          ...(traceparent === undefined ? {} : { traceparent }),
        },
        signal,
        mayTryAnother ? timeouts.acceptMs : undefined,
      );
      const vector = decodeFloats(answer);
      if (vector.length !== model.card.embeddingLength) {
        throw new StatorError("protocol_error", "The worker sent an embedding of another length than its card says.");
      }
      if (!vector.every(Number.isFinite)) throw new StatorError("engine_error", "The embedding is not a number.");
      worker.finished({ promptTokens: prompt.tokens.length, completionTokens: 0, cachedTokens: 0 });
      return vector;
    } catch (thrown) {
      const error = catalogued(thrown);
      model.callFailed(record, error);
      refusal = asClientSees(error, workerId);
      if (!error.class.migratable || attempt >= MAX_ATTEMPTS || context.wantedWorkerId !== undefined) throw refusal;
      exclude.add(workerId);
    } finally {
      selection.load.release();
      worker.ended();
    }
  }
}

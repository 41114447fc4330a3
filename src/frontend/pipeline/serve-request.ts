import type { Attributes, Span } from "@opentelemetry/api";
import { StatorError } from "../../protocol/errors.ts";
import type { TokenTable } from "../../protocol/token-table.ts";
import type { ServedModel } from "../models/served-model.ts";
import type { Answer, AnswerFacts } from "./answer.ts";
import type { ChatRequest, CompletionRequest, GenerationOptions } from "./client-request.ts";
import { withModel } from "./find-model.ts";
import { Generation } from "./generation.ts";
import type { Migrated } from "./migrated.ts";
import { checkModelLimits } from "./model-limits.ts";
import { planSequences } from "./plan-sequences.ts";
import { type TokenizedPrompt, tokenizeChat, tokenizePrompts } from "./preprocess.ts";
import type { RequestContext } from "./request-context.ts";
import type { Services } from "./services.ts";
import { inSpan, traceparentOf } from "./tracing.ts";

/**
 * The life of a chat or text completion: read and prepare -> route, generate, relay. Resolves when the answer is
 * complete. Rejects with a StatorError; by then all work has been stopped, and the caller ends the answer with the error.
 */
export async function serveRequest(
  services: Services,
  readRequest: () => Promise<ChatRequest | CompletionRequest>,
  context: RequestContext,
  makeAnswer: (facts: AnswerFacts) => Answer,
): Promise<void> {
  const prepared = await prepare(services, readRequest, context);
  await inSpan("generate", context.trace, (span) => generate(services, prepared, context, makeAnswer, span));
}

/** A request as tokens. It holds nothing of the client's text: a stream may live long, and its prompt be megabytes. */
interface PreparedRequest {
  readonly model: ServedModel;
  readonly table: TokenTable;
  readonly prompts: readonly TokenizedPrompt[];
  readonly generation: GenerationOptions;
  readonly endpoint: "chat" | "completions";
}

async function prepare(
  services: Services,
  readRequest: () => Promise<ChatRequest | CompletionRequest>,
  context: RequestContext,
): Promise<PreparedRequest> {
  const request = await readRequest();
  const { endpoint, generation } = request;
  return await withModel(services, request.model, context, async (model) => {
    checkModelLimits(generation, model.card);
    return await inSpan("preprocess", context.trace, async () => {
      const tokenizer = await model.tokenizer(context.signal);
      const prompts =
        request.endpoint === "chat"
          ? [await tokenizeChat(request, model, tokenizer, context.signal)]
          : await tokenizePrompts(request.prompts, model, tokenizer, context.signal);
      return { model, table: tokenizer.table, prompts, generation, endpoint };
    });
  });
}

async function generate(
  services: Services,
  { model, table, prompts, generation, endpoint }: PreparedRequest,
  context: RequestContext,
  makeAnswer: (facts: AnswerFacts) => Answer,
  span: Span,
): Promise<void> {
  const sequences = planSequences(prompts, generation, endpoint, {
    model,
    table,
    requestId: context.id,
    deadlineAt: context.deadlineAt,
    wantedWorkerId: context.wantedWorkerId,
    traceparent: traceparentOf(span),
  });
  const answer = makeAnswer({
    model: model.card.name,
    table,
    generation,
    workerId: () => work.workerId,
    onResume: () => work.resume(),
    onStalled: () => work.fail(new StatorError("slow_reader", "The client did not read the stream.")),
  });
  const plan = {
    sequences,
    choicesPerPrompt: generation.choices,
    signal: context.signal,
    onMigrated: (migrated: Migrated) => span.addEvent("migration", spanAttributes(migrated)),
  };
  const work: Generation = new Generation(plan, services, answer);
  try {
    await work.run();
  } finally {
    recordOutcome(work, context);
    span.setAttributes({
      "stator.worker_id": work.workerId ?? "",
      "stator.route": work.why,
      "stator.prompt_tokens": context.record.promptTokens,
      "stator.completion_tokens": context.record.completionTokens,
    });
  }
}

function spanAttributes({ type, from, to, reason, generated }: Migrated): Attributes {
  return {
    "stator.migration.type": type,
    "stator.migration.from": from,
    "stator.migration.to": to,
    "stator.migration.reason": reason,
    "stator.migration.generated_tokens": generated,
  };
}

function recordOutcome(generation: Generation, { record }: RequestContext): void {
  const usage = generation.usage();
  record.promptTokens = usage.promptTokens;
  record.completionTokens = usage.completionTokens;
  record.cachedTokens = usage.cachedTokens;
  record.firstTokenAt = generation.firstTokenAt;
  record.workerId = generation.workerId;
}

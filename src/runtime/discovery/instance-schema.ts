import { z } from "zod";
import { type InstanceKey, type InstanceRecord, isInstanceId } from "../../protocol/instance.ts";

const count = z.number().int().nonnegative();
const id = z.string().refine(isInstanceId, "not an id: letters, digits and . _ : - only, at most 128");
/** Goes into logs, listings and metric labels. */
const modelName = z
  .string()
  .min(1)
  .max(512)
  .regex(/^[^\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]*$/u, "has characters that cannot be printed");

/** Only what this version relies on; members that a newer one adds are kept. */
const instanceSchema = z.looseObject({
  namespace: id,
  component: id,
  workerId: id,
  epoch: id,
  address: z.string().min(1).max(2048),
  endpoints: z.array(z.looseObject({ name: id, codec: z.enum(["msgpack", "json"]) })).max(1024),
  events: z
    .array(z.looseObject({ topic: id, address: z.string().min(1).max(2048) }))
    .max(1024)
    .optional(),
  pid: count,
  startedAtMs: z.number(),
});

const workerSchema = instanceSchema.extend({
  engine: z.looseObject({ kind: z.string(), version: z.string() }),
  card: z.looseObject({
    name: modelName,
    aliases: z.array(modelName),
    revision: z.string(),
    tokenizer: z.discriminatedUnion("kind", [
      z.looseObject({ kind: z.literal("bytes") }),
      z.looseObject({ kind: z.literal("engine") }),
      z.looseObject({ kind: z.literal("huggingface"), path: z.string().min(1) }),
    ]),
    chatTemplate: z.string().optional(),
    bosToken: z.string(),
    eosToken: z.string(),
    vocabularySize: count,
    contextLength: count.min(1),
    blockSize: count.min(1),
    roles: z.array(z.string()),
    capabilities: z.looseObject({
      maxTopLogprobs: z.number(),
      grammars: z.array(z.string()),
      parameters: z.array(z.string()),
      resume: z.boolean().optional(),
    }),
    embeddingLength: count.optional(),
    kvLayout: z.string(),
    defaults: z.looseObject({}),
  }),
  capacity: z.looseObject({ maxRunning: count, totalBlocks: count }),
});

/** The largest record, as JSON. A chat template is the only long part. */
export const MAX_RECORD_BYTES = 1024 * 1024;

/** The record that JSON from a store holds, or why it is none. */
export function readInstanceRecord(value: unknown): InstanceRecord | string {
  const isWorker = typeof value === "object" && value !== null && "card" in value;
  const parsed = (isWorker ? workerSchema : instanceSchema).safeParse(value);
  if (parsed.success) return parsed.data as unknown as InstanceRecord;
  const issue = parsed.error.issues[0];
  return `record.${issue?.path.join(".") || "content"}: ${issue?.message ?? "invalid"}`;
}

/** A lease belongs to one place: whatever it is updated with keeps that place. */
export function withKeyOf<T extends InstanceRecord>(record: T, { namespace, component, workerId }: InstanceKey): T {
  return { ...record, namespace, component, workerId };
}

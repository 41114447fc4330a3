import type { EngineCapacity } from "./engine.ts";
import type { ModelCard } from "./model-card.ts";

const instanceIdPattern = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/;

/** Worker ids and epochs travel in headers, metric labels and file names, so they are plain. */
export function isInstanceId(text: string): boolean {
  return instanceIdPattern.test(text);
}

/** How the bodies and messages of an endpoint are encoded. The caller uses what the called endpoint says. */
export type EndpointCodec = "msgpack" | "json";

export interface EndpointInfo {
  readonly name: string;
  readonly codec: EndpointCodec;
}

/** Where the events of one topic come from. */
export interface EventSource {
  readonly topic: string;
  /** On the event plane. */
  readonly address: string;
}

/**
 * What one process offers under one component, as discovery shows it: all of it in one record, so that it changes at
 * once. `namespace`, `component`, `workerId` and `epoch` are of the form {@link isInstanceId}.
 */
export interface InstanceRecord {
  /** Fleets in different namespaces do not see each other. */
  readonly namespace: string;
  /** Instances of one component offer the same. */
  readonly component: string;
  /** Stable name of the place in the fleet, unique in the namespace; a restarted worker may keep it. */
  readonly workerId: string;
  /** New on every start; state of an older epoch is dropped, whatever arrives late. */
  readonly epoch: string;
  /** Request-plane address, for example `tcp://127.0.0.1:4567` or `memory://name`. */
  readonly address: string;
  readonly endpoints: readonly EndpointInfo[];
  readonly events?: readonly EventSource[];
  readonly pid: number;
  /** Milliseconds since the Unix epoch. */
  readonly startedAtMs: number;
}

/** An instance that serves a model. */
export interface WorkerRecord extends InstanceRecord {
  readonly engine: { readonly kind: string; readonly version: string };
  readonly card: ModelCard;
  readonly capacity: EngineCapacity;
}

export function isWorkerRecord(record: InstanceRecord): record is WorkerRecord {
  return (record as Partial<WorkerRecord>).card !== undefined;
}

/** What identifies the place in the fleet, whoever holds it. */
export type InstanceKey = Pick<InstanceRecord, "namespace" | "component" | "workerId">;

/** As text, unique for each key. */
export function instanceKey({ namespace, component, workerId }: InstanceKey): string {
  return `${namespace}/${component}/${workerId}`;
}

/**
 * The endpoint's name in a call. The epoch is part of it: at an address that belongs to another process by now the call
 * finds nobody, and never the wrong model.
 */
export function calledEndpoint(instance: Pick<InstanceRecord, "component" | "epoch">, endpoint: string): string {
  return `${instance.component}/${endpoint}@${instance.epoch}`;
}

/** What the instance says about one of its endpoints; msgpack when it says nothing. */
export function codecOfEndpoint(instance: Pick<InstanceRecord, "endpoints">, endpoint: string): EndpointCodec {
  return instance.endpoints.find(({ name }) => name === endpoint)?.codec ?? "msgpack";
}

export const DEFAULT_NAMESPACE = "default";
/** The component of workers that serve whole requests. */
export const WORKER_COMPONENT = "worker";

/** The endpoints that a worker serves on the request plane. */
export const workerEndpoints = {
  /** streaming: GenerateRequest -> TokenDelta ... */
  generate: "generate",
  /** unary: TokenizeCall -> tokens (u32 little endian) */
  tokenize: "tokenize",
  /** unary: nothing -> encoded TokenTable */
  tokenTable: "token-table",
  /** unary: tokens -> f32 little endian */
  embed: "embed",
  /** unary: nothing -> EngineLoads and health, msgpack */
  status: "status",
} as const;

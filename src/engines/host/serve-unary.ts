import { decodeTokens, encodeFloats, encodeTokens, encodeTokenTable, pack, unpack } from "../../protocol/codec.ts";
import type { Engine, EngineHealth, EngineLoads } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { IncomingCall } from "../../runtime/request-plane/plane.ts";
import type { Admission } from "./admission.ts";

/** Answers are cut into pieces that fit every window. */
const PIECE_BYTES = 128 * 1024;

/** The answer of the `status` endpoint, msgpack. */
export interface WorkerStatus {
  readonly health: EngineHealth;
  readonly loads: EngineLoads;
  /** Requests in the host's own slots and queue. */
  readonly running: number;
  readonly queued: number;
}

/** The body of the `tokenize` endpoint, msgpack. */
export interface TokenizeCall {
  readonly text: string;
  readonly addSpecial: boolean;
  readonly parseSpecial: boolean;
}

export async function serveTokenize(call: IncomingCall, engine: Engine): Promise<void> {
  const { tokenizing } = engine;
  if (!tokenizing) throw lacking(engine, "tokenizer");
  const body = unpack(call.body) as Partial<TokenizeCall> | null;
  const { text, addSpecial, parseSpecial } = body ?? {};
  if (typeof text !== "string" || typeof addSpecial !== "boolean" || typeof parseSpecial !== "boolean") {
    throw new StatorError("protocol_error", "The peer sent something that is not a tokenize call.");
  }
  call.accept(0);
  await sendAll(call, encodeTokens(await tokenizing.tokenize(text, { addSpecial, parseSpecial }, call.signal)));
}

export async function serveTokenTable(call: IncomingCall, engine: Engine): Promise<void> {
  if (!engine.tokenizing) throw lacking(engine, "tokenizer");
  call.accept(0);
  await sendAll(call, encodeTokenTable(engine.tokenizing.tokenTable()));
}

export async function serveEmbed(call: IncomingCall, engine: Engine, admission: Admission): Promise<void> {
  const { embedding } = engine;
  if (!embedding) throw lacking(engine, "embeddings");
  const tokens = decodeTokens(call.body);
  const ticket = admission.enter(call.signal);
  try {
    call.accept(ticket.queuePosition);
    await ticket.started;
    await sendAll(call, encodeFloats(await embedding.embed(tokens, call.signal)));
  } finally {
    ticket.leave();
  }
}

export async function serveStatus(call: IncomingCall, engine: Engine, admission: Admission): Promise<void> {
  call.accept(0);
  const status: WorkerStatus = {
    health: await engine.health("liveness", call.signal),
    loads: engine.loads(),
    running: admission.running,
    queued: admission.queued,
  };
  await sendAll(call, pack(status));
}

async function sendAll(call: IncomingCall, answer: Uint8Array): Promise<void> {
  for (let at = 0; at < answer.length; at += PIECE_BYTES) {
    if (!call.send(answer.subarray(at, at + PIECE_BYTES))) await call.ready();
  }
}

function lacking(engine: Engine, what: string): StatorError {
  return new StatorError(
    "unsupported_parameter",
    `The ${engine.describe().kind} engine of this worker has no ${what}.`,
    {
      param: "model",
    },
  );
}

/**
 * The one catalogue of errors. Every boundary (HTTP, request plane, engine, file) maps what it sees into this set once;
 * one table maps it to each API's error body. docs/errors.md is kept in step with this table by a test.
 */
export interface ErrorClass {
  /** HTTP status when the error is the whole answer. */
  readonly status: number;
  /** OpenAI's `error.type`. */
  readonly type: string;
  /** The same request may succeed later. */
  readonly retryable: boolean;
  /** Another worker may be tried with the same request. */
  readonly migratable: boolean;
  /** What the reader can do about it. */
  readonly hint: string;
}

const invalid = (hint: string): ErrorClass => ({
  status: 400,
  type: "invalid_request_error",
  retryable: false,
  migratable: false,
  hint,
});

/** code -> class. Codes are stable: clients switch on them. */
export const errorCatalogue = {
  invalid_json: invalid("Send one JSON object, encoded in UTF-8."),
  invalid_encoding: invalid("Encode the body in UTF-8 without a content encoding."),
  invalid_value: invalid("Correct the parameter that the message names."),
  missing_parameter: invalid("Add the parameter that the message names."),
  unknown_parameter: invalid("Remove the parameter, or correct its spelling."),
  unsupported_parameter: invalid("Leave it out: this server cannot honour it and will not ignore it."),
  invalid_template_input: invalid("Change the messages so that the model's chat template accepts them."),
  context_length_exceeded: invalid("Shorten the prompt or lower max_tokens."),
  invalid_header: invalid("Correct the header that the message names."),
  model_not_found: {
    status: 404,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "GET /v1/models lists what is served.",
  },
  worker_not_found: {
    status: 404,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "The admin port's GET /workers lists the workers of each model.",
  },
  route_not_found: {
    status: 404,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Check the path; docs/api.md lists the routes.",
  },
  permission_denied: {
    status: 403,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Send the port's token, or ask for it on a loopback address.",
  },
  method_not_allowed: {
    status: 405,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Use the method named in the Allow header.",
  },
  request_timeout: {
    status: 408,
    type: "invalid_request_error",
    retryable: true,
    migratable: false,
    hint: "Send the whole request faster.",
  },
  payload_too_large: {
    status: 413,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Send a smaller body, or raise http.maxBodyBytes.",
  },
  unsupported_media_type: {
    status: 415,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Send Content-Type: application/json, without a Content-Encoding.",
  },
  headers_too_large: {
    status: 431,
    type: "invalid_request_error",
    retryable: false,
    migratable: false,
    hint: "Send fewer or smaller headers.",
  },
  client_closed: {
    status: 499,
    type: "client_closed_request",
    retryable: false,
    migratable: false,
    hint: "The client left before the answer was complete.",
  },
  slow_reader: {
    status: 499,
    type: "client_closed_request",
    retryable: true,
    migratable: false,
    hint: "Read the stream faster: it took no bytes for http.slowReaderTimeoutMs.",
  },
  internal_error: {
    status: 500,
    type: "server_error",
    retryable: true,
    migratable: false,
    hint: "Look up the error id in the server's log.",
  },
  engine_error: {
    status: 500,
    type: "server_error",
    retryable: true,
    migratable: false,
    hint: "The engine failed on this request; the worker's log has the cause.",
  },
  worker_lost: {
    status: 502,
    type: "server_error",
    retryable: true,
    migratable: true,
    hint: "The worker went away while it ran the request; send it again.",
  },
  worker_unreachable: {
    status: 502,
    type: "server_error",
    retryable: true,
    migratable: true,
    hint: "No connection to the worker; send the request again.",
  },
  protocol_error: {
    status: 502,
    type: "server_error",
    retryable: true,
    migratable: false,
    hint: "Frontend and worker do not speak the same protocol version; upgrade the older one.",
  },
  peer_authentication_failed: {
    status: 502,
    type: "server_error",
    retryable: false,
    migratable: true,
    hint: "Give frontend and workers the same shared secret, and certificates that the other side's CA has signed.",
  },
  overloaded: {
    status: 503,
    type: "overloaded_error",
    retryable: true,
    migratable: true,
    hint: "All slots and queue places are taken; retry after the time in Retry-After.",
  },
  queue_timeout: {
    status: 503,
    type: "overloaded_error",
    retryable: true,
    migratable: false,
    hint: "The request waited queue.timeoutMs without getting a slot; retry later or add workers.",
  },
  not_ready: {
    status: 503,
    type: "overloaded_error",
    retryable: true,
    migratable: false,
    hint: "No worker of the model is ready; GET /health says why.",
  },
  discovery_unavailable: {
    status: 503,
    type: "server_error",
    retryable: true,
    migratable: false,
    hint: "Check that the discovery store of the message runs and can be reached: stator doctor.",
  },
  model_unavailable: {
    status: 503,
    type: "overloaded_error",
    retryable: false,
    migratable: false,
    hint: "Check the model's name or path, its file and the network; `stator doctor` tests them.",
  },
  draining: {
    status: 503,
    type: "overloaded_error",
    retryable: true,
    migratable: true,
    hint: "Send the request to another server.",
  },
  deadline_exceeded: {
    status: 504,
    type: "timeout_error",
    retryable: true,
    migratable: false,
    hint: "Raise x-stator-timeout-ms or timeouts.totalMs, or ask for fewer tokens.",
  },
  first_token_timeout: {
    status: 504,
    type: "timeout_error",
    retryable: true,
    migratable: false,
    hint: "The engine gave no first token in timeouts.firstTokenMs.",
  },
  inter_token_timeout: {
    status: 504,
    type: "timeout_error",
    retryable: true,
    migratable: false,
    hint: "The engine gave no next token in timeouts.interTokenMs.",
  },
} as const satisfies Record<string, ErrorClass>;

export type ErrorCode = keyof typeof errorCatalogue;

export interface ErrorOptions {
  /** The request parameter at fault, as a path: `messages[0].content`. */
  readonly param?: string;
  /** When to come back, in seconds; becomes Retry-After. */
  readonly retryAfterSeconds?: number;
  /** The same id stands in the log beside the cause. */
  readonly id?: string;
  readonly cause?: unknown;
}

/** The only error that crosses a boundary. Its message is safe to show to a client. */
export class StatorError extends Error {
  readonly code: ErrorCode;
  readonly param: string | undefined;
  readonly retryAfterSeconds: number | undefined;
  readonly id: string | undefined;

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "StatorError";
    this.code = code;
    this.param = options.param;
    this.retryAfterSeconds = options.retryAfterSeconds;
    this.id = options.id;
  }

  get class(): ErrorClass {
    return errorCatalogue[this.code];
  }
}

/** The OpenAI form of an error: what is wrong, what to do about it, and where to read more. */
export function errorObject(error: StatorError): { message: string; type: string; param: string | null; code: string } {
  const sentence = /[.!?]$/.test(error.message) ? error.message : `${error.message}.`;
  return {
    message: `${sentence} ${error.class.hint} See docs/errors.md#${error.code}`,
    type: error.class.type,
    param: error.param ?? null,
    code: error.code,
  };
}

/** An error as it travels on our own wires. */
export interface WireError {
  readonly code: ErrorCode;
  readonly message: string;
  readonly param?: string;
  readonly retryAfterSeconds?: number;
  readonly id?: string;
}

export function toWireError(error: StatorError): WireError {
  return {
    code: error.code,
    message: error.message,
    ...(error.param === undefined ? {} : { param: error.param }),
    ...(error.retryAfterSeconds === undefined ? {} : { retryAfterSeconds: error.retryAfterSeconds }),
    ...(error.id === undefined ? {} : { id: error.id }),
  };
}

/** Longest texts that are taken from a peer. */
const maxWireMessage = 2000;
const maxWireParam = 200;
const maxWireId = 128;

/** Accepts whatever a peer sent; anything outside the catalogue becomes `protocol_error`. */
export function fromWireError(wire: unknown): StatorError {
  if (typeof wire === "object" && wire !== null) {
    const { code, message, param, retryAfterSeconds, id } = wire as Record<string, unknown>;
    if (typeof code === "string" && Object.hasOwn(errorCatalogue, code) && typeof message === "string") {
      const comesBack = typeof retryAfterSeconds === "number" && Number.isFinite(retryAfterSeconds);
      return new StatorError(code as ErrorCode, message.slice(0, maxWireMessage), {
        ...(typeof param === "string" ? { param: param.slice(0, maxWireParam) } : {}),
        ...(comesBack && retryAfterSeconds >= 0 ? { retryAfterSeconds } : {}),
        ...(typeof id === "string" ? { id: id.slice(0, maxWireId) } : {}),
      });
    }
  }
  return new StatorError("protocol_error", "The peer sent an error that is not in the catalogue.");
}

/**
 * Any thrown value as a StatorError. Unknown throws become an opaque `internal_error` with an id; the caller logs
 * `error.cause` under that id. `makeId` returns a fresh id.
 */
export function toStatorError(thrown: unknown, makeId: () => string): StatorError {
  if (thrown instanceof StatorError) return thrown;
  const id = makeId();
  return new StatorError("internal_error", `Internal error ${id}.`, { id, cause: thrown });
}

/** What is compared. `nats-request`: request and reply of the NATS client alone, unary only. */
export const kinds = ["tcp", "tcp+tls", "nats", "grpc", "nats-request"] as const;
export type Kind = (typeof kinds)[number];

/** What a stream is asked for, as JSON in its body. */
export interface StreamPlan {
  readonly durationMs: number;
  /** Between two messages of a stream; 0 = as fast as the connection takes them. */
  readonly paceMs: number;
}

/** Of one token: what a worker sends most. */
export const MESSAGE_BYTES = 8;

/** A request of the main process to a peer; it answers with one message. */
export type Order =
  | { readonly what: "usage" }
  | { readonly what: "unary"; readonly concurrency: number; readonly durationMs: number }
  | { readonly what: "streams"; readonly streams: number; readonly plan: StreamPlan };

export interface UnaryResult {
  readonly seconds: number;
  readonly latenciesMs: readonly number[];
}

export interface StreamsResult {
  readonly seconds: number;
  readonly messages: number;
}

export interface PeerSettings {
  readonly kind: Kind;
  /** Of the NATS server. */
  readonly natsUrl: string;
  /** Of the server under test; for the client. */
  readonly address: string;
  /** PEM, for TLS. */
  readonly ca: string;
  readonly cert: string;
  readonly key: string;
}

/** The method that the gRPC peers share: bytes in, bytes out, no code generation. */
export const grpcStream = method("/bench.Peer/Stream", true);
export const grpcEcho = method("/bench.Peer/Echo", false);

function method(path: string, responseStream: boolean) {
  const same = (bytes: Buffer): Buffer => bytes;
  return {
    path,
    requestStream: false as const,
    responseStream,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  };
}

/**
 * Bounds of a request plane. Both sides have them, and of those that concern both (`maxOpenBytes`, `maxDataBytes`,
 * `windowBytes`, `maxStreams`) the smaller value of the two counts.
 */
export interface RequestPlaneLimits {
  /** Body of a call. */
  readonly maxOpenBytes: number;
  /** One message of a stream. */
  readonly maxDataBytes: number;
  /** Bytes that a server may send on a stream ahead of what the client has consumed. */
  readonly windowBytes: number;
  /** Calls at once on one connection. */
  readonly maxStreams: number;
  /** Connections that a server has at once. */
  readonly maxConnections: number;
  /** Bytes that wait for one socket before `send` reports "no credit" to everybody on it. */
  readonly maxQueuedBytes: number;
}

/** What the two sides of a stream have to agree on. */
export type StreamLimits = Pick<RequestPlaneLimits, "maxDataBytes" | "windowBytes">;

export function smallerOf(a: StreamLimits, b: StreamLimits): StreamLimits {
  return {
    maxDataBytes: Math.min(a.maxDataBytes, b.maxDataBytes),
    windowBytes: Math.min(a.windowBytes, b.windowBytes),
  };
}

export const defaultLimits: RequestPlaneLimits = {
  maxOpenBytes: 64 * 1024 * 1024,
  maxDataBytes: 16 * 1024 * 1024,
  windowBytes: 256 * 1024,
  maxStreams: 65_536,
  maxConnections: 1024,
  maxQueuedBytes: 1024 * 1024,
};

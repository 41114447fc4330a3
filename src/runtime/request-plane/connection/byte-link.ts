import type { StatorError } from "../../../protocol/errors.ts";

/**
 * Bytes in both directions between two processes, in order and without loss: a TCP socket, a TLS socket, or messages over
 * NATS. All that differs between the planes lies behind it.
 */
export interface ByteLink {
  /** Bytes that were written and have not left this process (or, where the transport tells, were not taken by the peer). */
  readonly waitingBytes: number;
  /** Called once, before anything is delivered. */
  start(events: ByteLinkEvents): void;
  /** Takes the parts as one write. They must not be changed afterwards. Without effect after the end. */
  write(parts: readonly Uint8Array[]): void;
  /** Lets go what was written, for a second at most, then closes. No event follows. */
  end(): void;
  /** Closes at once. No event follows. */
  destroy(): void;
}

export interface ByteLinkEvents {
  /** Bytes can flow. For an accepted link: during `start`. */
  onOpen(): void;
  /** `chunk` is only valid during the call. Must not throw. */
  onBytes(chunk: Uint8Array): void;
  /** `waitingBytes` went down after it had been high. */
  onDrain(): void;
  /** It is over, once, by the other side or by a failure. `error` is set when there is more to say than that it is gone. */
  onClosed(why: string, error?: StatorError): void;
}

import { StatorError } from "../../../protocol/errors.ts";
import { Backoff } from "../../lifecycle/backoff.ts";
import { TimerWheel } from "../../lifecycle/timer-wheel.ts";
import { checkSharedSecret } from "../../security/shared-secret.ts";
import { BatchEnd } from "../batch-end.ts";
import { defaultLimits, type RequestPlaneLimits } from "../limits.ts";
import { OutgoingStream, openTooLarge, unreachable } from "../outgoing-stream.ts";
import type { ClientStream, OutgoingCall, RequestPlaneClient, StreamSink } from "../plane.ts";
import type { ByteLink } from "./byte-link.ts";
import { ClientConnection, type ConnectionOwner } from "./client-connection.ts";
import { defaultHeartbeat, type HeartbeatTimes } from "./heartbeat.ts";
import type { LinkOptions } from "./link.ts";

/** What every client that speaks frames can be told. */
export interface FramedClientOptions {
  readonly limits?: Partial<RequestPlaneLimits>;
  readonly heartbeat?: Partial<HeartbeatTimes>;
  /** From the first packet to the end of the handshake. Default 5 s. */
  readonly connectTimeoutMs?: number;
  /** Servers must prove that they have it, and are shown that this client has it. */
  readonly sharedSecret?: string;
  /** Resolution of deadlines. Default 100 ms. */
  readonly tickMs?: number;
}

/** Begins a link to an address, or throws the StatorError that says why that cannot be. */
export type Dial = (address: string) => ByteLink;

/** An address that has been used: its connection, or how long it has to rest after failures. */
interface Peer {
  connection: ClientConnection | undefined;
  readonly backoff: Backoff;
  retryAtMs: number;
  /** Why the last attempt failed, when it was more than a silent address. */
  failure: StatorError | undefined;
}

/** How long a failing address is remembered. */
const FORGET_AFTER_MS = 30_000;

/**
 * One connection per address, opened by the first call and used by all. A lost connection is opened anew by the next call;
 * after a failed attempt calls fail at once until the back-off is over.
 */
export class FramedClient implements RequestPlaneClient, ConnectionOwner {
  readonly #dial: Dial;
  readonly #limits: RequestPlaneLimits;
  readonly #linkOptions: LinkOptions;
  readonly #wheel: TimerWheel;
  readonly #batchEnd = new BatchEnd();
  readonly #peers = new Map<string, Peer>();
  readonly #connections = new Set<ClientConnection>();
  #closed = false;

  constructor(options: FramedClientOptions, dial: Dial) {
    if (options.sharedSecret !== undefined) checkSharedSecret(options.sharedSecret);
    this.#dial = dial;
    this.#limits = { ...defaultLimits, ...options.limits };
    this.#wheel = new TimerWheel({ tickMs: options.tickMs ?? 100 });
    this.#linkOptions = {
      limits: this.#limits,
      heartbeat: { ...defaultHeartbeat, ...options.heartbeat },
      wheel: this.#wheel,
      handshakeTimeoutMs: options.connectTimeoutMs ?? 5000,
      sharedSecret: options.sharedSecret,
    };
  }

  open(address: string, call: OutgoingCall, sink: StreamSink): ClientStream {
    const stream = new OutgoingStream(call, sink, this.#limits);
    const failure = this.#place(address, stream);
    if (failure) {
      setImmediate(() => {
        stream.fail(failure);
        this.#batchEnd.notifySoon();
      });
    } else {
      stream.deadline = this.#wheel.schedule(call.timeoutMs, () => stream.expire());
    }
    return stream;
  }

  onBatchEnd(callback: () => void): () => void {
    return this.#batchEnd.add(callback);
  }

  async close(): Promise<void> {
    this.#closed = true;
    for (const connection of [...this.#connections]) connection.close("the client was closed");
    this.#peers.clear();
    this.#wheel.close();
  }

  /** Puts the stream on a connection, or tells why not. */
  #place(address: string, stream: OutgoingStream): StatorError | undefined {
    const bodyBytes = stream.call.body.length;
    if (this.#closed) return unreachable(address, "the client is closed");
    if (bodyBytes > this.#limits.maxOpenBytes) return openTooLarge(bodyBytes, this.#limits.maxOpenBytes);
    const peer = this.#peers.get(address);
    if (peer?.connection?.isDraining) {
      return new StatorError("draining", `The worker at ${address} is shutting down.`);
    }
    const connection = peer?.connection ?? this.#connect(address, peer);
    return connection instanceof StatorError ? connection : connection.add(stream);
  }

  #connect(address: string, known: Peer | undefined): ClientConnection | StatorError {
    const restMs = (known?.retryAtMs ?? 0) - performance.now();
    if (known && restMs > 0) {
      const next = `next one in ${Math.ceil(restMs)} ms`;
      if (!known.failure) return unreachable(address, `the last attempt failed; ${next}`);
      return new StatorError(known.failure.code, `${known.failure.message} (The last attempt; ${next}.)`);
    }
    let bytes: ByteLink;
    try {
      bytes = this.#dial(address);
    } catch (thrown) {
      if (thrown instanceof StatorError) return thrown;
      throw thrown;
    }
    const peer = known ?? this.#remember(address);
    const connection = new ClientConnection(address, bytes, this.#linkOptions, this);
    peer.connection = connection;
    this.#connections.add(connection);
    return connection;
  }

  #remember(address: string): Peer {
    const backoff = new Backoff({ initialMs: 50, maxMs: 2000 });
    const peer: Peer = { connection: undefined, backoff, retryAtMs: 0, failure: undefined };
    this.#peers.set(address, peer);
    return peer;
  }

  /** @internal */
  onConnected(connection: ClientConnection): void {
    this.#peers.get(connection.address)?.backoff.reset();
  }

  /** @internal */
  onGone(connection: ClientConnection, connected: boolean, error: StatorError | undefined): void {
    this.#connections.delete(connection);
    const { address } = connection;
    const peer = this.#peers.get(address);
    if (peer?.connection !== connection) return;
    peer.connection = undefined;
    if (connected && !error) {
      this.#peers.delete(address);
      return;
    }
    peer.failure = error;
    peer.retryAtMs = performance.now() + peer.backoff.nextDelayMs();
    const failures = peer.backoff.failures;
    this.#wheel.schedule(FORGET_AFTER_MS, () => {
      if (!peer.connection && peer.backoff.failures === failures && this.#peers.get(address) === peer) {
        this.#peers.delete(address);
      }
    });
  }

  /** @internal */
  onStreamOver(): void {
    this.#batchEnd.notifySoon();
  }

  /** @internal */
  onBatch(): void {
    this.#batchEnd.notify();
  }
}

import type { Logger } from "pino";
import { StatorError } from "../../../protocol/errors.ts";
import { TimerWheel } from "../../lifecycle/timer-wheel.ts";
import { checkSharedSecret } from "../../security/shared-secret.ts";
import { CallRunner } from "../call-runner.ts";
import { defaultLimits, type RequestPlaneLimits } from "../limits.ts";
import type { CallHandler } from "../plane.ts";
import type { ByteLink } from "./byte-link.ts";
import { defaultHeartbeat, type HeartbeatTimes } from "./heartbeat.ts";
import type { LinkOptions } from "./link.ts";
import { ServerConnection } from "./server-connection.ts";

/** What every server that speaks frames can be told. */
export interface FramedServerOptions {
  readonly limits?: Partial<RequestPlaneLimits>;
  readonly heartbeat?: Partial<HeartbeatTimes>;
  /** A connection that has not introduced and proven itself by then is closed. Default 3 s. */
  readonly handshakeTimeoutMs?: number;
  /** Connections whose client has not introduced and proven itself; more are closed at once. Default 256. */
  readonly maxStrangers?: number;
  /** Clients must prove that they have it, and are shown that this server has it. */
  readonly sharedSecret?: string;
  /** Resolution of deadlines. Default 100 ms. */
  readonly tickMs?: number;
  /** Put between each connection and its transport; for faults on purpose. */
  readonly wrapLink?: (link: ByteLink) => ByteLink;
  readonly logger?: Logger;
}

export const DEFAULT_HANDSHAKE_MS = 3000;

/** The connections of a server and what runs on them, whatever carries the bytes. */
export class ServerConnections {
  readonly limits: RequestPlaneLimits;
  readonly wheel: TimerWheel;
  readonly #options: LinkOptions;
  readonly #maxStrangers: number;
  readonly #wrapLink: ((link: ByteLink) => ByteLink) | undefined;
  readonly #runner: CallRunner;
  readonly #connections = new Set<ServerConnection>();

  constructor(options: FramedServerOptions) {
    if (options.sharedSecret !== undefined) checkSharedSecret(options.sharedSecret);
    this.limits = { ...defaultLimits, ...options.limits };
    this.wheel = new TimerWheel({ tickMs: options.tickMs ?? 100 });
    this.#options = {
      limits: this.limits,
      heartbeat: { ...defaultHeartbeat, ...options.heartbeat },
      wheel: this.wheel,
      handshakeTimeoutMs: options.handshakeTimeoutMs ?? DEFAULT_HANDSHAKE_MS,
      sharedSecret: options.sharedSecret,
    };
    this.#maxStrangers = options.maxStrangers ?? 256;
    this.#wrapLink = options.wrapLink;
    this.#runner = new CallRunner(this.limits, this.wheel, options.logger);
  }

  get activeCalls(): number {
    return this.#runner.size;
  }

  get size(): number {
    return this.#connections.size;
  }

  /** Whether `open` connections, these here and such that are not here yet, hold as many strangers as there may be. */
  isCrowded(open = this.size): boolean {
    let strangers = open;
    for (const connection of this.#connections) if (connection.isReady) strangers--;
    return strangers >= this.#maxStrangers;
  }

  handle(endpoint: string, handler: CallHandler): void {
    this.#runner.handle(endpoint, handler);
  }

  /** Serves a client, or only tells it `refusal`. */
  add(bytes: ByteLink, refusal?: StatorError): void {
    const link = this.#wrapLink?.(bytes) ?? bytes;
    const connection = new ServerConnection(link, this.#options, this.#runner, (gone) =>
      this.#connections.delete(gone),
    );
    const { maxConnections } = this.limits;
    const full = this.#connections.size >= maxConnections;
    this.#connections.add(connection);
    connection.start();
    if (refusal) connection.fail(refusal);
    else if (full) {
      const what = `The worker has its ${maxConnections} connections already.`;
      connection.fail(new StatorError("overloaded", what, { retryAfterSeconds: 1 }));
    }
  }

  stopAccepting(): void {
    if (!this.#runner.isAccepting) return;
    this.#runner.stopAccepting();
    // The door stays open: whoever comes now hears `draining` instead of nothing.
    for (const connection of this.#connections) connection.goaway();
  }

  close(): void {
    this.#runner.stopAccepting();
    for (const connection of [...this.#connections]) connection.close();
    // Calls of connections that went away earlier.
    this.#runner.abortAll(new StatorError("draining", "The worker was closed."));
  }
}

import { StatorError } from "../../protocol/errors.ts";
import { pack, unpack } from "../../protocol/message-codec.ts";
import { uniqueId } from "../lifecycle/unique-id.ts";
import type { IncomingCall, RequestPlaneClient, RequestPlaneServer } from "../request-plane/plane.ts";
import { type EventOrigin, originName } from "./plane.ts";
import type { EventPublisher } from "./publisher.ts";

/** Streaming: `{ origin, from }` -> the frames of the ring, then a heartbeat frame. */
export const REPLAY_ENDPOINT = "event-replay";

export interface ReplayRequest {
  /** Of the publisher's process; for {@link RequestPlaneReplay} on the request plane. */
  readonly address: string;
  readonly origin: EventOrigin;
  readonly from: number;
}

/** Gets frames once more. */
export interface ReplaySource {
  /**
   * Gives the frames from the one with sequence `from` on (or from the oldest that the publisher still has), in order, up
   * to its present end, and then a heartbeat frame. `onFrame` owns the bytes; it must not throw. Rejects with a
   * StatorError; what was given until then is right. Nothing is given after the abort.
   */
  replay(request: ReplayRequest, onFrame: (frame: Uint8Array) => void, signal: AbortSignal): Promise<void>;
}

/** Answers replays of the publishers of a process. */
export class ReplayService {
  readonly #publishers = new Map<string, EventPublisher>();

  constructor(server: RequestPlaneServer) {
    server.handle(REPLAY_ENDPOINT, (call) => this.#serve(call));
  }

  /** Returns how to take it back. */
  offer(publisher: EventPublisher): () => void {
    const name = originName(publisher.origin);
    this.#publishers.set(name, publisher);
    return () => void this.#publishers.delete(name);
  }

  async #serve(call: IncomingCall): Promise<void> {
    const { origin, from } = decodeRequest(call.body);
    const publisher = this.#publishers.get(origin);
    if (!publisher) throw new StatorError("worker_not_found", `No events of ${origin} are published here.`);
    call.accept(0);
    // A caller that reads slowly holds a position, not frames: the ring goes on without it.
    for (const frame of publisher.replay(from)) if (!call.send(frame)) await call.ready();
  }
}

/** Asks the {@link ReplayService} of the publisher's process. */
export class RequestPlaneReplay implements ReplaySource {
  readonly #client: RequestPlaneClient;
  readonly #timeoutMs: number;

  /** `timeoutMs` bounds a whole replay; the next one goes on where it was cut. */
  constructor(client: RequestPlaneClient, timeoutMs = 10_000) {
    this.#client = client;
    this.#timeoutMs = timeoutMs;
  }

  replay(request: ReplayRequest, onFrame: (frame: Uint8Array) => void, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) {
        reject(new StatorError("client_closed", "The replay was cancelled."));
        return;
      }
      const call = {
        endpoint: REPLAY_ENDPOINT,
        requestId: uniqueId("replay-"),
        body: pack({ origin: originName(request.origin), from: request.from }),
        timeoutMs: this.#timeoutMs,
      };
      const stream = this.#client.open(request.address, call, {
        onAccept: () => {},
        onData: (message) => {
          onFrame(new Uint8Array(message)); // a copy: the bytes belong to the connection
          stream.consumed(message.length);
        },
        onEnd: () => {
          signal.removeEventListener("abort", onAbort);
          resolve();
        },
        onError: (error) => {
          signal.removeEventListener("abort", onAbort);
          reject(error);
        },
      });
      const onAbort = (): void => stream.cancel("kill");
      signal.addEventListener("abort", onAbort, { once: true });
    });
  }
}

function decodeRequest(body: Uint8Array): { origin: string; from: number } {
  const value = unpack(body);
  if (typeof value === "object" && value !== null) {
    const { origin, from } = value as Record<string, unknown>;
    if (typeof origin === "string" && typeof from === "number" && Number.isSafeInteger(from) && from >= 0) {
      return { origin, from };
    }
  }
  throw new StatorError("protocol_error", "The peer sent a replay request that is none.");
}

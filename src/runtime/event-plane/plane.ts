import { type InstanceRecord, instanceKey } from "../../protocol/instance.ts";

/*
 * The event plane: KV events, load reports, replica sync. Many small messages to whoever listens; nobody holds a
 * publisher up, and nothing is lost in silence.
 *
 *   EventPublisher                                              EventSubscription
 *     publish(payload) -> frame -> ReplayRing                     one PublisherFeed per publisher
 *                           |          ^                              |            ^
 *                           |          +---- replay (request plane) --+ on a gap   |
 *                           +---- outlet ~~~~ EventTransport ~~~~ inlet -----------+
 *
 * A transport may lose, repeat and reorder frames. Sequences, gaps, replay and heartbeats are dealt with once, above it.
 */

/** Who publishes what. Sequences count from 0 for each origin; a restarted publisher has another epoch. */
export interface EventOrigin extends Pick<InstanceRecord, "namespace" | "component" | "workerId" | "epoch"> {
  readonly topic: string;
}

/** An origin as text, unique for each; it stands in every frame. The other parts hold no slash, the topic may. */
export function originName(origin: EventOrigin): string {
  return `${instanceKey(origin)}/${origin.epoch}/${origin.topic}`;
}

/**
 * `new_epoch`: the publisher is new here, or was started again: state of an older epoch is void.
 * `lost`: events are missing that the publisher does not have any more (or that it cannot be asked for).
 */
export type ResetReason = "new_epoch" | "lost";

/**
 * What a subscriber hears of each origin, always with the same `origin` object:
 *
 *   onReset("new_epoch") -> ( onEvents | onReset("lost") )* -> onGone
 *
 * After a reset the next event has `nextSequence`; what was before has to come from a dump of the publisher's state,
 * except when `nextSequence` is 0. Between resets every event comes exactly once, in order, without a gap. Never called
 * from inside a method of the subscription, except `onGone`. Listeners must not throw.
 */
export interface EventListener {
  onReset(origin: EventOrigin, reason: ResetReason, nextSequence: number): void;
  /** The payloads of `firstSequence`, `firstSequence + 1`, ... They are views of one frame: keep copies of small parts. */
  onEvents(origin: EventOrigin, firstSequence: number, payloads: readonly Uint8Array[]): void;
  /** Removed from discovery, or replaced by another epoch. Only for origins of which there was a reset. */
  onGone(origin: EventOrigin): void;
}

/** Carries frames. Best effort: a frame arrives whole or not at all, perhaps late, perhaps twice. */
export interface EventTransport {
  /** Opens the way out for one origin. Rejects with a StatorError. */
  bind(origin: EventOrigin): Promise<EventOutlet>;
  /**
   * Frames that are sent to `address` from now on, until the inlet is closed; reconnects by itself. `onFrame` owns the
   * bytes and must not throw. Throws `worker_unreachable` for an address of another transport.
   */
  connect(address: string, onFrame: (frame: Uint8Array) => void): EventInlet;
  /** Closes outlets and inlets too. Idempotent. */
  close(): Promise<void>;
}

export interface EventOutlet {
  /** For discovery: what subscribers connect to. */
  readonly address: string;
  /** Longest frame that can be carried. */
  readonly maxFrameBytes: number;
  /**
   * Takes the frame, which must not be changed afterwards, and never waits for a subscriber. A promise (never rejected)
   * asks for no further frame until it resolves.
   */
  send(frame: Uint8Array): Promise<void> | undefined;
  /** Idempotent. */
  close(): Promise<void>;
}

export interface EventInlet {
  /** No frame is delivered afterwards. Idempotent. */
  close(): void;
}

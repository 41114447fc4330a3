export { followPublishers } from "./discovered-publishers.ts";
export * from "./plane.ts";
export { EventPublisher, type PublisherOptions, type PublisherStats } from "./publisher.ts";
export type { StartAt } from "./publisher-feed.ts";
export { REPLAY_ENDPOINT, ReplayService, type ReplaySource, RequestPlaneReplay } from "./replay.ts";
export type { RingLimits } from "./replay-ring.ts";
export {
  EventSubscription,
  type KnownPublisher,
  type SubscriptionOptions,
  type SubscriptionStats,
} from "./subscription.ts";
export { MemoryEventBus, MemoryEventTransport } from "./transports/memory.ts";
export { NatsEventTransport, type NatsTransportOptions } from "./transports/nats.ts";
export { ZmqEventTransport, type ZmqTransportOptions } from "./transports/zmq.ts";

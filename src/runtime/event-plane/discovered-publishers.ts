import type { InstanceRecord } from "../../protocol/instance.ts";
import type { Discovery, Scope, Watch } from "../discovery/discovery.ts";
import type { EventSubscription } from "./subscription.ts";

/**
 * Keeps a subscription at the publishers of `topic` that discovery knows within `scope`. A discovery without its store
 * changes nothing: known publishers go on.
 */
export function followPublishers(
  discovery: Discovery,
  scope: Scope,
  topic: string,
  subscription: EventSubscription,
): Watch {
  return discovery.watch(scope, {
    onUpsert(record) {
      const source = record.events?.find((it) => it.topic === topic);
      if (!source) {
        subscription.remove(record);
        return;
      }
      const { namespace, component, workerId, epoch } = record satisfies InstanceRecord;
      subscription.upsert({
        origin: { namespace, component, workerId, epoch, topic },
        address: source.address,
        replayAddress: record.address,
      });
    },
    onRemoved: (record) => subscription.remove(record),
    onSynced() {},
  });
}

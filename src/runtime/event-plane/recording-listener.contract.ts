import { type EventListener, type EventOrigin, originName } from "./plane.ts";

const DEADLINE_MS = 20_000;

/** Polls a condition; fails with what `describeIt` says. */
export async function eventually(condition: () => boolean, describeIt: () => unknown = () => ""): Promise<void> {
  const deadline = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`condition not met: ${JSON.stringify(describeIt())}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** What a listener heard. Checks the order that {@link EventListener} promises while it listens. */
export class RecordingListener implements EventListener {
  readonly resets: { name: string; reason: string; next: number }[] = [];
  readonly gone: string[] = [];
  /** Sequences and texts of every origin, in the order of arrival. */
  readonly heard = new Map<string, { sequence: number; text: string }[]>();
  readonly problems: string[] = [];
  readonly #next = new Map<string, number>();
  onText: ((text: string) => void) | undefined;

  onReset(origin: EventOrigin, reason: string, nextSequence: number): void {
    const name = originName(origin);
    const next = this.#next.get(name);
    if (reason === "new_epoch" ? next !== undefined : next === undefined || nextSequence <= next) {
      this.problems.push(`${name}: reset ${reason} at ${nextSequence} after ${next}`);
    }
    this.#next.set(name, nextSequence);
    this.resets.push({ name, reason, next: nextSequence });
  }

  onEvents(origin: EventOrigin, firstSequence: number, payloads: readonly Uint8Array[]): void {
    const name = originName(origin);
    const next = this.#next.get(name);
    if (next !== firstSequence || payloads.length === 0) {
      this.problems.push(`${name}: ${payloads.length} events from ${firstSequence} instead of ${next}`);
    }
    let list = this.heard.get(name);
    if (!list) {
      list = [];
      this.heard.set(name, list);
    }
    payloads.forEach((payload, i) => {
      const text = Buffer.from(payload).toString();
      list.push({ sequence: firstSequence + i, text });
      this.onText?.(text);
    });
    this.#next.set(name, firstSequence + payloads.length);
  }

  onGone(origin: EventOrigin): void {
    const name = originName(origin);
    if (!this.#next.delete(name)) this.problems.push(`${name}: gone without a reset`);
    this.gone.push(name);
  }

  texts(origin: EventOrigin): string[] {
    return (this.heard.get(originName(origin)) ?? []).map(({ text }) => text);
  }

  /** The sequence that the listener expects next. */
  position(origin: EventOrigin): number | undefined {
    return this.#next.get(originName(origin));
  }
}

export function makeOrigin(workerId: string, epoch = "e1"): EventOrigin {
  return { namespace: "ns", component: "worker", workerId, epoch, topic: "kv-events" };
}

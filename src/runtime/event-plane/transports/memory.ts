import { StatorError } from "../../../protocol/errors.ts";
import { type EventInlet, type EventOrigin, type EventOutlet, type EventTransport, originName } from "../plane.ts";

const SCHEME = "memory-events://";
const MAX_FRAME_BYTES = 16 * 1024 * 1024;

type Receiver = (frame: Uint8Array) => void;

/** Who listens to which address in one process. Transports that share one reach each other. */
export class MemoryEventBus {
  readonly #receivers = new Map<string, Set<Receiver>>();

  /** @internal */
  deliver(address: string, frame: Uint8Array): void {
    for (const receiver of this.#receivers.get(address) ?? []) receiver(frame);
  }

  /** @internal Returns how to leave. */
  listen(address: string, receiver: Receiver): () => void {
    let receivers = this.#receivers.get(address);
    if (!receivers) {
      receivers = new Set();
      this.#receivers.set(address, receivers);
    }
    receivers.add(receiver);
    return () => {
      receivers.delete(receiver);
      if (receivers.size === 0 && this.#receivers.get(address) === receivers) this.#receivers.delete(address);
    };
  }
}

let outlets = 0;

/** Frames within one process, at once and without a copy. */
export class MemoryEventTransport implements EventTransport {
  readonly #bus: MemoryEventBus;
  readonly #open = new Set<EventOutlet | EventInlet>();

  constructor(bus: MemoryEventBus) {
    this.#bus = bus;
  }

  async bind(origin: EventOrigin): Promise<EventOutlet> {
    const address = `${SCHEME}${originName(origin)}/${outlets++}`;
    let isOpen = true;
    const outlet: EventOutlet = {
      address,
      maxFrameBytes: MAX_FRAME_BYTES,
      send: (frame) => {
        if (isOpen) this.#bus.deliver(address, frame);
        return undefined;
      },
      close: async () => {
        isOpen = false;
        this.#open.delete(outlet);
      },
    };
    this.#open.add(outlet);
    return outlet;
  }

  connect(address: string, onFrame: Receiver): EventInlet {
    if (!address.startsWith(SCHEME)) {
      throw new StatorError("worker_unreachable", `${address} is not an address of the in-process event plane.`);
    }
    const leave = this.#bus.listen(address, (frame) => onFrame(frame));
    const inlet: EventInlet = {
      close: () => {
        leave();
        this.#open.delete(inlet);
      },
    };
    this.#open.add(inlet);
    return inlet;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open].map((it) => it.close()));
  }
}

import type { Socket } from "node:net";
import type { Deadline, TimerWheel } from "../../runtime/lifecycle/timer-wheel.ts";

/** Notices a reader that has taken nothing for a while although bytes wait for it. One per response. */
export class ReaderWatch {
  readonly #socket: Socket;
  readonly #wheel: TimerWheel;
  readonly #timeoutMs: number;
  readonly #onStalled: () => void;
  #deadline: Deadline | undefined;
  #takenBytes = 0;
  #queuedBytes = 0;
  #progressAt = 0;

  constructor(socket: Socket, wheel: TimerWheel, timeoutMs: number, onStalled: () => void) {
    this.#socket = socket;
    this.#wheel = wheel;
    this.#timeoutMs = timeoutMs;
    this.#onStalled = onStalled;
  }

  /** To be called when a write has left bytes behind. Cheap when the watch is already on. */
  start(): void {
    if (this.#deadline !== undefined) return;
    this.#progressAt = performance.now();
    this.#progressed();
    this.#schedule();
  }

  close(): void {
    this.#deadline?.cancel();
    this.#deadline = undefined;
  }

  #schedule(): void {
    this.#deadline = this.#wheel.schedule(this.#timeoutMs / 4, this.#check);
  }

  readonly #check = (): void => {
    this.#deadline = undefined;
    if (this.#socket.destroyed || this.#socket.writableLength === 0) return;
    const now = performance.now();
    if (this.#progressed()) this.#progressAt = now;
    else if (now - this.#progressAt >= this.#timeoutMs) {
      this.#onStalled();
      return;
    }
    this.#schedule();
  };

  /** Whether the kernel has taken anything since the last call: a write that is complete, or a part of one. */
  #progressed(): boolean {
    const socket: Socket & { readonly _handle?: { readonly writeQueueSize?: number } | null } = this.#socket;
    const takenBytes = socket.bytesWritten - socket.writableLength;
    // Node has no public number for the parts of a large write; net.Socket's own timeout looks at the same one.
    const queuedBytes = socket._handle?.writeQueueSize ?? 0;
    const changed = takenBytes !== this.#takenBytes || queuedBytes !== this.#queuedBytes;
    this.#takenBytes = takenBytes;
    this.#queuedBytes = queuedBytes;
    return changed;
  }
}

import type { StatorError } from "../../../protocol/errors.ts";
import type { ByteLink, ByteLinkEvents } from "./byte-link.ts";

/** What may come in over one link while it is cut. A real network would make the peer wait. */
const MAX_HELD_BYTES = 64 * 1024 * 1024;

/**
 * A cable that can be pulled: while it is cut, nothing passes any of the links that run over it, in either direction, and
 * neither side hears of an end. When it is mended all that was held passes, in order.
 *
 *   peer == transport == [ cut: bytes and ends are held ] == connection
 */
export class LinkCut {
  readonly #links = new Set<CutLink>();
  #isCut = false;

  get isCut(): boolean {
    return this.#isCut;
  }

  /** Runs `link` over this cable. */
  readonly wrap = (link: ByteLink): ByteLink => new CutLink(link, this, this.#links);

  cut(): void {
    this.#isCut = true;
  }

  mend(): void {
    this.#isCut = false;
    for (const link of [...this.#links]) link.release();
  }
}

class CutLink implements ByteLink, ByteLinkEvents {
  readonly #inner: ByteLink;
  readonly #cable: LinkCut;
  readonly #links: Set<CutLink>;
  #events: ByteLinkEvents | undefined;
  #outgoing: (readonly Uint8Array[])[] = [];
  #outgoingBytes = 0;
  /** What the transport told meanwhile. */
  #incoming: (() => void)[] = [];
  #incomingBytes = 0;
  /** How this side ended it meanwhile. */
  #ending: "end" | "destroy" | undefined;

  constructor(inner: ByteLink, cable: LinkCut, links: Set<CutLink>) {
    this.#inner = inner;
    this.#cable = cable;
    this.#links = links;
  }

  get waitingBytes(): number {
    return this.#outgoingBytes + this.#inner.waitingBytes;
  }

  start(events: ByteLinkEvents): void {
    this.#events = events;
    this.#links.add(this);
    this.#inner.start(this);
  }

  write(parts: readonly Uint8Array[]): void {
    if (!this.#events) return;
    if (!this.#cable.isCut) {
      this.#inner.write(parts);
      return;
    }
    this.#outgoing.push(parts);
    for (const part of parts) this.#outgoingBytes += part.length;
  }

  end(): void {
    this.#leave("end");
  }

  destroy(): void {
    this.#leave("destroy");
  }

  /** The cable is whole again. What passes may end this link, or cut the cable anew. */
  release(): void {
    const outgoing = this.#outgoing;
    this.#outgoing = [];
    this.#outgoingBytes = 0;
    for (const parts of outgoing) this.#inner.write(parts);
    if (this.#ending !== undefined) {
      this.#links.delete(this);
      this.#inner[this.#ending]();
      return;
    }
    const incoming = this.#incoming;
    this.#incoming = [];
    this.#incomingBytes = 0;
    for (const deliver of incoming) deliver();
    if (outgoing.length > 0) this.onDrain();
  }

  onOpen(): void {
    this.#hear(() => this.#events?.onOpen());
  }

  onBytes(chunk: Uint8Array): void {
    if (!this.#cable.isCut) {
      this.#events?.onBytes(chunk);
      return;
    }
    if (!this.#events) return;
    if (this.#incomingBytes + chunk.length > MAX_HELD_BYTES) {
      this.#inner.destroy();
      this.#over("more came in than a cut link holds");
      return;
    }
    const copy = Uint8Array.from(chunk);
    this.#incomingBytes += copy.length;
    this.#incoming.push(() => this.#events?.onBytes(copy));
  }

  onDrain(): void {
    if (!this.#cable.isCut) this.#events?.onDrain();
  }

  onClosed(why: string, error?: StatorError): void {
    this.#hear(() => this.#over(why, error));
  }

  #hear(deliver: () => void): void {
    if (this.#cable.isCut) this.#incoming.push(deliver);
    else deliver();
  }

  #leave(ending: "end" | "destroy"): void {
    this.#events = undefined;
    this.#incoming = [];
    this.#incomingBytes = 0;
    if (this.#cable.isCut && this.#links.has(this)) {
      this.#ending = ending;
      if (ending === "end") return;
      this.#outgoing = [];
      this.#outgoingBytes = 0;
      return;
    }
    this.#links.delete(this);
    this.#inner[ending]();
  }

  #over(why: string, error?: StatorError): void {
    const events = this.#events;
    this.#events = undefined;
    this.#outgoing = [];
    this.#outgoingBytes = 0;
    this.#incoming = [];
    this.#incomingBytes = 0;
    this.#links.delete(this);
    events?.onClosed(why, error);
  }
}

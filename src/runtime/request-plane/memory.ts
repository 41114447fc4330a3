import type { Logger } from "pino";
import type { StatorError } from "../../protocol/errors.ts";
import { TimerWheel } from "../lifecycle/timer-wheel.ts";
import { BatchEnd } from "./batch-end.ts";
import { CallRunner } from "./call-runner.ts";
import { defaultLimits, type RequestPlaneLimits, type StreamLimits } from "./limits.ts";
import { OutgoingStream, openTooLarge, type StreamWire } from "./outgoing-stream.ts";
import type {
  CallHandler,
  CancelKind,
  ClientStream,
  OutgoingCall,
  RequestPlaneClient,
  RequestPlaneServer,
  StreamSink,
} from "./plane.ts";
import type { CallWire, RunningCall } from "./running-call.ts";

const SCHEME = "memory://";

/** The servers of one process, by name. Clients and servers that share one reach each other. */
export class MemoryNetwork {
  readonly #servers = new Map<string, MemoryRequestPlaneServer>();

  /** @internal */
  add(address: string, server: MemoryRequestPlaneServer): void {
    const there = this.#servers.get(address);
    if (there !== undefined && there !== server) throw new Error(`address ${address} is in use`);
    this.#servers.set(address, server);
  }

  /** @internal */
  remove(address: string): void {
    this.#servers.delete(address);
  }

  /** @internal */
  find(address: string): MemoryRequestPlaneServer | undefined {
    return this.#servers.get(address);
  }
}

export interface MemoryPlaneOptions {
  readonly network: MemoryNetwork;
  /** Of a server's deadlines; stays open. Default: one of its own. */
  readonly wheel?: TimerWheel;
  readonly limits?: Partial<RequestPlaneLimits>;
  readonly logger?: Logger;
}

/** Reaches the servers of a {@link MemoryNetwork}. Messages arrive in a later turn of the event loop, as on a socket. */
export class MemoryRequestPlaneClient implements RequestPlaneClient {
  readonly #network: MemoryNetwork;
  readonly #limits: RequestPlaneLimits;
  readonly #wheel = new TimerWheel();
  readonly #batchEnd = new BatchEnd();
  readonly #mail = new Mailbox(() => this.#batchEnd.notify());
  readonly #streams = new Set<OutgoingStream>();
  #closed = false;

  constructor(options: MemoryPlaneOptions) {
    this.#network = options.network;
    this.#limits = { ...defaultLimits, ...options.limits };
  }

  open(address: string, call: OutgoingCall, sink: StreamSink): ClientStream {
    const stream = new OutgoingStream(call, sink, this.#limits);
    this.#streams.add(stream);
    stream.deadline = this.#wheel.schedule(call.timeoutMs, () => {
      stream.expire();
      this.#batchEnd.notifySoon();
    });
    const connection = new MemoryConnection(address, stream, this.#mail, (over) => {
      this.#streams.delete(over);
      this.#batchEnd.notifySoon();
    });
    this.#mail.post(() => {
      if (this.#closed) stream.lost(address, "the client is closed");
      else if (call.body.length > this.#limits.maxOpenBytes) {
        stream.fail(openTooLarge(call.body.length, this.#limits.maxOpenBytes));
      } else connection.connect(this.#network.find(address), this.#limits);
    });
    return stream;
  }

  onBatchEnd(callback: () => void): () => void {
    return this.#batchEnd.add(callback);
  }

  close(): Promise<void> {
    this.#closed = true;
    for (const stream of [...this.#streams]) {
      if (stream.sent) stream.cancelOnServer("kill");
      stream.lost("memory", "the client was closed");
    }
    this.#wheel.close();
    return Promise.resolve();
  }
}

/** Serves under `memory://name`. */
export class MemoryRequestPlaneServer implements RequestPlaneServer {
  readonly address: string;
  readonly #network: MemoryNetwork;
  readonly #wheel: TimerWheel;
  readonly #ownsWheel: boolean;
  readonly #connections = new Set<MemoryConnection>();
  /** @internal */
  readonly limits: RequestPlaneLimits;
  /** @internal */
  readonly runner: CallRunner;

  constructor(name: string, options: MemoryPlaneOptions) {
    this.address = SCHEME + name;
    this.#network = options.network;
    this.limits = { ...defaultLimits, ...options.limits };
    this.#wheel = options.wheel ?? new TimerWheel();
    this.#ownsWheel = options.wheel === undefined;
    this.runner = new CallRunner(this.limits, this.#wheel, options.logger);
  }

  get activeCalls(): number {
    return this.runner.size;
  }

  async listen(): Promise<void> {
    this.#network.add(this.address, this);
  }

  handle(endpoint: string, handler: CallHandler): void {
    this.runner.handle(endpoint, handler);
  }

  stopAccepting(): void {
    this.runner.stopAccepting();
  }

  close(): Promise<void> {
    if (this.#network.find(this.address) === this) this.#network.remove(this.address);
    this.runner.stopAccepting();
    for (const connection of [...this.#connections]) connection.serverClosed();
    if (this.#ownsWheel) this.#wheel.close();
    return Promise.resolve();
  }

  /** @internal */
  connected(connection: MemoryConnection): void {
    this.#connections.add(connection);
  }

  /** @internal */
  disconnected(connection: MemoryConnection): void {
    this.#connections.delete(connection);
  }
}

/** One call between a client and a server of this process: both wires in one object. */
class MemoryConnection implements StreamWire, CallWire {
  readonly congested = false;
  readonly #address: string;
  readonly #stream: OutgoingStream;
  readonly #mail: Mailbox;
  readonly #onOver: (stream: OutgoingStream) => void;
  #call: RunningCall | undefined;
  #server: MemoryRequestPlaneServer | undefined;

  constructor(address: string, stream: OutgoingStream, mail: Mailbox, onOver: (stream: OutgoingStream) => void) {
    this.#address = address;
    this.#stream = stream;
    this.#mail = mail;
    this.#onOver = onOver;
    stream.attach(this);
  }

  connect(server: MemoryRequestPlaneServer | undefined, ours: StreamLimits): void {
    const { call } = this.#stream;
    if (this.#stream.isOver) return;
    if (!server) {
      this.#stream.lost(this.#address, "nobody listens there");
      return;
    }
    if (call.body.length > server.limits.maxOpenBytes) {
      this.#stream.fail(openTooLarge(call.body.length, server.limits.maxOpenBytes));
      return;
    }
    this.#stream.sent = true;
    this.#stream.agree(server.limits);
    this.#server = server;
    server.connected(this);
    this.#call = server.runner.start(call, this, ours, () => server.disconnected(this));
    if (!this.#call) server.disconnected(this);
  }

  serverClosed(): void {
    this.#server?.disconnected(this);
    this.#call?.disconnected();
    this.#mail.post(() => this.#stream.lost(this.#address, "the worker closed"));
  }

  // What the client's side asks.
  credit(_stream: OutgoingStream, bytes: number): void {
    this.#mail.post(() => this.#call?.addCredit(bytes));
  }

  cancel(_stream: OutgoingStream, kind: CancelKind): void {
    this.#mail.post(() => this.#call?.cancelled(kind));
  }

  over(stream: OutgoingStream): void {
    this.#onOver(stream);
  }

  // What the server's side asks.
  accept(queuePosition: number): void {
    this.#mail.post(() => this.#stream.accept(queuePosition));
  }

  data(message: Uint8Array): void {
    this.#mail.postData(this.#stream, message);
  }

  end(): void {
    this.#mail.post(() => this.#stream.end());
  }

  error(error: StatorError): void {
    this.#mail.post(() => this.#stream.fail(error));
  }
}

/** What is posted in one turn of the event loop is delivered, in order, at its end. */
class Mailbox {
  readonly #onDelivered: () => void;
  /** A function to call, or a stream followed by the message for it: no closure per token. */
  #letters: ((() => void) | OutgoingStream | Uint8Array)[] = [];
  #scheduled = false;

  constructor(onDelivered: () => void) {
    this.#onDelivered = onDelivered;
  }

  post(letter: () => void): void {
    this.#letters.push(letter);
    this.#schedule();
  }

  postData(stream: OutgoingStream, message: Uint8Array): void {
    this.#letters.push(stream, message);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(this.#deliver);
  }

  readonly #deliver = (): void => {
    const letters = this.#letters;
    this.#letters = [];
    this.#scheduled = false;
    for (let i = 0; i < letters.length; i++) {
      const letter = letters[i]!;
      if (typeof letter === "function") letter();
      else if (letter instanceof OutgoingStream) this.#data(letter, letters[++i] as Uint8Array);
    }
    this.#onDelivered();
  };

  #data(stream: OutgoingStream, message: Uint8Array): void {
    if (stream.data(message)) return;
    stream.cancelOnServer("kill");
    stream.lost("memory", "it sent more than the credit it had");
  }
}
